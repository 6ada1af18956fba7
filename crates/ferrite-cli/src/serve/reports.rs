//! Where a server reports on itself: metrics for Prometheus, and the console.
//!
//! Contents: [`Reports`], which listens before pools are opened, so that a place that cannot be used costs nothing; and
//! [`Reporting`], which answers. Used by `serve`.

use std::net::TcpListener;

use ferrite_server::Server;

use super::plan::Plan;
use crate::Failure;
use crate::console::Console;
use crate::endpoint::{self, Endpoint};
use crate::metrics;
use crate::served::Volumes;

/// The places, which do not answer yet.
pub(super) struct Reports {
    metrics: Option<TcpListener>,
    console: Option<Console>,
}

/// The places, answering until this is dropped.
pub(super) struct Reporting {
    metrics: Option<Endpoint>,
    console: Option<Endpoint>,
}

impl Reports {
    /// Listens where the plan says.
    ///
    /// # Errors
    /// A place or the console's token cannot be used.
    pub(super) fn listen(plan: &Plan) -> Result<Reports, Failure> {
        let token = plan.console_token.as_deref();
        let console = plan.console.as_deref().map(|place| Console::listen(place, token));
        let metrics = plan.metrics.as_deref();
        Ok(Reports {
            console: console.transpose()?,
            metrics: metrics.map(|place| Endpoint::listen("--metrics", place)).transpose()?,
        })
    }

    /// Begins to answer.
    ///
    /// # Errors
    /// The system has no threads.
    pub(super) fn start(self, server: &Server, volumes: Volumes) -> Result<Reporting, Failure> {
        let console = self
            .console
            .map(|console| console.start(server.observer(), volumes.clone()));
        let metrics = self.metrics.map(|listener| {
            let source = metrics::source(server.observer(), volumes);
            Endpoint::start(listener, endpoint::metrics(source))
        });
        Ok(Reporting {
            console: console.transpose()?,
            metrics: metrics.transpose()?,
        })
    }
}

impl Reporting {
    /// Lines for the user.
    pub(super) fn said(&self) -> Vec<String> {
        let metrics = self
            .metrics
            .iter()
            .map(|at| format!("metrics at http://{}/metrics", at.address));
        let console = self
            .console
            .iter()
            .map(|at| format!("console at http://{}/", at.address));
        metrics.chain(console).collect()
    }
}
