//! One connection to PostgreSQL, used by one thread at a time.
//!
//! Contents: [`Session`]. A call drives the connection itself, on a runtime of its own, and ends within a time limit: a
//! server that accepts bytes and never answers costs no more.
//!
//! Invariant: a session whose call has not ended with an answer is never used again.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Row, Socket, Statement};

use super::sql::{PLANS, Statements};
use super::waits::{Use, Waits};

/// How long a call looks for its answer before it sleeps: most come within, and waking a processor costs as much as a
/// commit does.
const BUSY_POLL: Duration = Duration::from_micros(150);

/// Why a call has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server was not reached, or refused the connection for now. Nothing was sent.
    NotSent(String),
    /// The transaction was rolled back, and may be tried again.
    RolledBack(String),
    /// There was no answer, or one that does not say what is durable.
    NoAnswer(String),
    /// The disk of the database is full; the transaction was rolled back.
    Full(String),
    /// Trying again will not help.
    Refused(String),
}

/// A connection that is driven by the thread that waits for it.
trait Drive: Send {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>>;
}

impl<S, T> Drive for tokio_postgres::Connection<S, T>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> {
        self.poll_message(cx)
    }
}

/// The statements that a session has prepared.
pub(super) struct Prepared {
    pub(super) take: Statement,
    pub(super) owner: Statement,
    pub(super) renew: Statement,
    pub(super) apply: Statement,
    pub(super) apply_puts: Statement,
    pub(super) confirm: Statement,
    pub(super) get_many: Statement,
    pub(super) scan: Statement,
    pub(super) ask: Statement,
    pub(super) tally: Statement,
}

/// See the head of this module.
pub(super) struct Session {
    client: Client,
    line: Line,
}

/// The connection, and what it takes to drive it.
struct Line {
    // Before the runtime, in which it lives.
    connection: Box<dyn Drive>,
    runtime: Runtime,
    waits: Arc<Waits>,
    /// The use of the answers of calls from now on.
    what: Use,
    /// A warning came with the last answer. A commit that was cancelled while it waited for a standby is one.
    warning: Option<String>,
}

/// Which failure an error of the protocol is.
fn failure_of(error: &tokio_postgres::Error) -> Failure {
    let Some(db) = error.as_db_error() else {
        return Failure::NoAnswer(text_of(error));
    };
    let text = text_of_db(db);
    let code = db.code();
    match code.code().get(..2) {
        // The connection ends with it, and a commit that waits for a standby may have happened.
        _ if matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic)) => Failure::NoAnswer(text),
        _ if *code == SqlState::DISK_FULL => Failure::Full(text),
        // The server has become a standby; another one takes changes.
        _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Failure::NotSent(text),
        // Rollbacks, resources that are short, locks, cancellations by a time limit.
        Some("40" | "53" | "55" | "57") => Failure::RolledBack(text),
        _ => Failure::Refused(text),
    }
}

fn text_of_db(error: &DbError) -> String {
    format!("{} ({})", error.message(), error.code().code())
}

/// An error with its causes; the library's own text names only the kind.
fn text_of(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// Runs a call while its connection is driven.
async fn driven<T>(
    connection: &mut dyn Drive,
    warning: &mut Option<String>,
    call: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, tokio_postgres::Error> {
    let mut call = pin!(call);
    let mut is_over = false;
    let began = Instant::now();
    poll_fn(|cx| {
        while !is_over {
            match connection.poll(cx) {
                Poll::Ready(Some(Ok(AsyncMessage::Notice(notice))))
                    if matches!(notice.parsed_severity(), Some(Severity::Warning)) =>
                {
                    *warning = Some(text_of_db(&notice));
                }
                Poll::Ready(Some(Ok(_))) => {}
                // The call learns of it, too.
                Poll::Ready(Some(Err(_)) | None) => is_over = true,
                Poll::Pending => break,
            }
        }
        let answer = call.as_mut().poll(cx);
        if answer.is_pending() && began.elapsed() < BUSY_POLL {
            cx.waker().wake_by_ref();
        }
        answer
    })
    .await
}

fn no_answer(waited: Duration) -> String {
    format!("no answer within {:.1} s", waited.as_secs_f32())
}

impl Session {
    /// Connects, and prepares a session in which no statement takes longer than the time limit.
    pub(super) fn connect<T>(config: &Config, tls: T, waits: &Arc<Waits>, what: Use) -> Result<Session, Failure>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::NotSent(error.to_string()))?;
        let connecting = Box::pin(config.connect(tls));
        let connected = runtime.block_on(waits.within(Instant::now(), what, connecting));
        let (client, connection) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                runtime.shutdown_background();
                let is_for_now = error.as_db_error().is_none_or(|db| {
                    let class = db.code().code().get(..2);
                    matches!(class, Some("53" | "57" | "08"))
                });
                return Err(match is_for_now {
                    true => Failure::NotSent(text_of(&error)),
                    false => Failure::Refused(text_of(&error)),
                });
            }
            Err(waited) => {
                // A resolver of names may still be at work, for longer than the limit.
                runtime.shutdown_background();
                return Err(Failure::NotSent(no_answer(waited)));
            }
        };
        let mut session = Session {
            client,
            line: Line {
                connection: Box::new(connection),
                runtime,
                waits: Arc::clone(waits),
                what,
                warning: None,
            },
        };
        let ms = waits.timeout().as_millis();
        session.batch(&format!(
            "SET synchronous_commit = on; SET statement_timeout = {ms}; SET lock_timeout = {ms}; \
             SET idle_in_transaction_session_timeout = {ms}; SET client_min_messages = warning; \
             SET default_transaction_isolation = 'read committed'; {PLANS}"
        ))?;
        Ok(session)
    }

    /// Sets what the answers of calls are good for from now on.
    pub(super) fn set_use(&mut self, what: Use) {
        self.line.what = what;
    }

    /// Runs statements without parameters, as one transaction.
    pub(super) fn batch(&mut self, statements: &str) -> Result<(), Failure> {
        let call = self.client.batch_execute(statements);
        self.line.run(call)
    }

    pub(super) fn prepare(&mut self, all: &Statements) -> Result<Prepared, Failure> {
        let client = &self.client;
        let call = async move {
            Ok(Prepared {
                take: client.prepare(&all.take).await?,
                owner: client.prepare(&all.owner).await?,
                renew: client.prepare(&all.renew).await?,
                apply: client.prepare(&all.apply).await?,
                apply_puts: client.prepare(&all.apply_puts).await?,
                confirm: client.prepare(&all.confirm).await?,
                get_many: client.prepare(&all.get_many).await?,
                scan: client.prepare(&all.scan).await?,
                ask: client.prepare(&all.ask).await?,
                tally: client.prepare(&all.tally).await?,
            })
        };
        self.line.run(call)
    }

    /// Runs a statement that was not prepared, and has no parameters.
    pub(super) fn ask(&mut self, statement: &str) -> Result<Vec<Row>, Failure> {
        let call = self.client.query(statement, &[]);
        self.line.run(call)
    }

    pub(super) fn query(&mut self, statement: &Statement, with: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        let call = self.client.query(statement, with);
        self.line.run(call)
    }

    /// Runs a statement of which the server must have said without reservation that it is committed.
    pub(super) fn commit(&mut self, statement: &Statement, with: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        self.line.warning = None;
        let rows = self.query(statement, with)?;
        self.without_warning(rows)
    }

    /// The same for a statement without rows. Returns how many it has affected.
    pub(super) fn commit_count(&mut self, statement: &Statement, with: &[&(dyn ToSql + Sync)]) -> Result<u64, Failure> {
        self.line.warning = None;
        let call = self.client.execute(statement, with);
        let count = self.line.run(call)?;
        self.without_warning(count)
    }

    fn without_warning<T>(&mut self, answer: T) -> Result<T, Failure> {
        match self.line.warning.take() {
            Some(warning) => Err(Failure::NoAnswer(warning)),
            None => Ok(answer),
        }
    }

    /// Whether the server has closed the connection, as far as is known.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

impl Line {
    fn run<T>(&mut self, call: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        let call: Pin<Box<dyn Future<Output = _>>> = Box::pin(driven(&mut *self.connection, &mut self.warning, call));
        match self
            .runtime
            .block_on(self.waits.within(Instant::now(), self.what, call))
        {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(failure_of(&error)),
            Err(waited) => Err(Failure::NoAnswer(no_answer(waited))),
        }
    }
}
