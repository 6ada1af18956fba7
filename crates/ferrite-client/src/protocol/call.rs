//! One request whose caller waits, from connection to connection.
//!
//! Contents: [`Call`], which decides whether the request is sent, sent again, or fails because it may have taken
//! effect.
//!
//! Invariant: a request that could have taken effect is sent again only if that does no harm: if it changes nothing, if
//! repeating it has no further effect on the session, or if it carries a token of the session that is still alive.

use ferrite_vfs::{DedupToken, FsError};

/// Whether a request may be repeated though it may have taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// Repeating it has no further effect.
    Yes,
    /// It is a change, which needs a token.
    WithToken,
}

/// The tokens of the session as it is now.
pub(crate) trait Tokens {
    /// Whether a token belongs to a slot that the session has.
    fn has(&self, token: DedupToken) -> bool;

    /// Whether the session has any slots.
    fn has_any(&self) -> bool;
}

/// The next step of a call that has a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// It sends its request for the first time.
    Send,
    /// It sends the same request again, unless its caller gives up.
    Repeat,
    /// It prepares its request anew: another session has begun since.
    Prepare,
    /// It ends: the outcome is unknown.
    Fail(FsError),
}

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Call {
    repeats: Repeats,
    token: Option<DedupToken>,
    was_sent: bool,
}

impl Call {
    /// A call that has sent nothing.
    pub(crate) fn new(repeats: Repeats) -> Call {
        Call {
            repeats,
            token: None,
            was_sent: false,
        }
    }

    /// Whether the request has yet to be encoded, if need be with another token. A request that was sent stays
    /// as it is.
    pub(crate) fn is_to_prepare(&self) -> bool {
        !self.was_sent
    }

    /// Whether the request needs a token.
    pub(crate) fn needs_token(&self) -> bool {
        self.repeats == Repeats::WithToken
    }

    /// Notes the request's token; `None` if the server has none to give.
    pub(crate) fn set_token(&mut self, token: Option<DedupToken>) {
        self.token = token;
    }

    /// There is a connection. The request counts as sent if the call sends it: a request that was sent in part was not
    /// executed, but the client cannot tell which part was sent.
    pub(crate) fn connected(&mut self, tokens: &impl Tokens) -> Next {
        if self.was_sent {
            return match self.may_repeat(tokens) {
                true => Next::Repeat,
                false => Next::Fail(FsError::Disconnected),
            };
        }
        if self.needs_token() && !self.is_current(tokens) {
            return Next::Prepare;
        }
        self.was_sent = true;
        Next::Send
    }

    fn may_repeat(&self, tokens: &impl Tokens) -> bool {
        match (self.repeats, self.token) {
            (Repeats::Yes, _) => true,
            (Repeats::WithToken, Some(token)) => tokens.has(token),
            (Repeats::WithToken, None) => false,
        }
    }

    /// Whether a change may be sent with this token, or without any.
    fn is_current(&self, tokens: &impl Tokens) -> bool {
        match self.token {
            Some(token) => tokens.has(token),
            None => !tokens.has_any(),
        }
    }

    /// Whether the client has to tell the server that no caller waits any longer: the request may still have an effect
    /// on the session, unknown to this client.
    pub(crate) fn is_abandoned<T>(&self, outcome: &Result<T, FsError>) -> bool {
        self.was_sent && matches!(outcome, Err(FsError::TimedOut | FsError::Interrupted))
    }
}
