import type { Layer } from './decide.ts'
import type { PrincipalFacts } from './match.ts'

/** The caller of a request or of background work. */
export type Caller = {
  /** The user responsible for the credential: key owner, consenting user, creator of the work. */
  user: { id: string; username: string; role: 'admin' | 'user' }
  credential: {
    type: 'user' | 'api_key' | 'oauth_token' | 'run' | 'actor_token'
    /** Of an actor token the actor, so that a repeat with the next token is the same request. */
    id: string
    expires_at: string | null
    /** Of an OAuth token. */
    scopes: string[] | null
    /** Client that an OAuth token was issued to. */
    client_id?: string
  }
  /** The acting principal in records and audit entries. For a key, the key itself, not its owner. */
  principal: { type: 'user' | 'api_key'; id: string }
  /** Project that the credential is bound to; null if unbound. */
  project_id: string | null
  /** Every layer must allow; an unrestricted admin has none. */
  layers: Layer[]
  /** Limits beyond the principal, inherited by all work that the call causes. */
  bounds?: readonly Bound[]
  /** Other principals involved in starting the work. */
  starters?: readonly PrincipalRef[]
  /** Set only for background work. */
  run?: RunAs
  /** Set only for the token of an end user; the principal is then its issuer. */
  end_user?: EndUser
}

/** What an end-user token may open. */
export const END_USER_SCOPES = ['chat', 'files', 'feedback', 'approvals', 'memories'] as const
export type EndUserScope = (typeof END_USER_SCOPES)[number]

/** Limits of an end-user token, counted by actor. */
export type EndUserLimits = {
  requests_per_minute: number
  messages_per_hour: number
  open_sessions: number
  streams: number
  message_chars: number
  upload_bytes_per_day: number
}

/** An end user who calls by a separate token. */
export type EndUser = {
  actor_id: string
  /** The agents that it may talk to. */
  agent_ids: readonly string[]
  /** The sessions that it may use, without new ones; null for all of its sessions with these agents. */
  session_ids: readonly string[] | null
  scopes: readonly EndUserScope[]
  limits: EndUserLimits
  /** Id of the token. */
  jti: string
}

/** The background work. `policy_id` is the boundary policy of the trigger that started it, `chain` its trigger chain. */
export type RunAs = {
  work_type: string
  work_id: string
  trigger_id: string | null
  policy_id: string | null
  chain: readonly string[]
}

/** A user or a project key. */
export type PrincipalRef = { type: 'user' | 'api_key'; id: string }

/** A limit on work beyond its principal. */
export type Bound =
  /** The current permissions of the author of a definition. */
  | { kind: 'author'; author: PrincipalRef | null; of: string }
  /** The policy of a trigger by which an author wrote. */
  | { kind: 'policy'; id: string }
  /** The boundary policy of an agent version. */
  | { kind: 'boundary'; agent_id: string; version: number }
  /** The current OAuth grant; `scopes` of a token issued for a subset, null for the whole grant. */
  | { kind: 'grant'; id: string; scopes: readonly string[] | null }
  | ({ kind: 'memory' } & MemoryBound)

/** Facts readable by a turn and the work it causes: without an end user, and of one end user or, if `shared`, of all. */
export type MemoryBound = { actor_id: string | null; shared: boolean }

/** The authority stored with work that runs later; never contains a token. */
export type PrincipalRecord = PrincipalRef & {
  via: null | { type: 'oauth_grant' | 'actor_token'; id: string } | TriggerScope
  /** Absent if there are none. */
  bounds?: readonly Bound[]
  /** Other principals involved in starting the work, such as the requester of a manual firing or of a retry. */
  starters?: readonly PrincipalRef[]
}

/** A definition by a tenant that acts when it is used: a tool, an agent, an orchestration. */
export type CallerDefinition = {
  id: string
  /**
   * Principal of the last write that changed its behaviour. Null if unknown, which allows nothing. Absent if it does not
   * apply: a definition of another project makes no calls on the platform.
   */
  author?: PrincipalRecord | null
  /** Agent version whose boundary policy applies to its calls. */
  boundary?: { agent_id: string; version: number }
  memory?: MemoryBound
}

/** The trigger of a firing: its policy, and the trigger chain, which ends with the trigger. */
export type TriggerScope = { type: 'trigger'; id: string; policy_id: string | null; chain: readonly string[] }

/** The part of a caller used for decisions. */
export type CallerFacts = Pick<Caller, 'principal' | 'layers' | 'bounds' | 'starters' | 'run' | 'end_user'> & {
  credential: Pick<Caller['credential'], 'type' | 'id'>
  project_id?: string | null
}

/** Returns the authority of work started by the caller, with all bounds of the caller. */
export const principalRecord = (caller: CallerFacts): PrincipalRecord => ({
  ...caller.principal,
  via: scopeOf(caller),
  ...(caller.bounds?.length ? { bounds: caller.bounds } : {}),
  ...(caller.starters?.length ? { starters: caller.starters } : {}),
})

function scopeOf({ credential, run, end_user }: CallerFacts): PrincipalRecord['via'] {
  if (run && run.trigger_id !== null)
    return { type: 'trigger', id: run.trigger_id, policy_id: run.policy_id, chain: run.chain }
  if (end_user) return { type: 'actor_token', id: end_user.jti }
  return credential.type === 'oauth_token' ? { type: 'oauth_grant', id: credential.id } : null
}

/** Returns the trigger chain of an authority. */
export const triggerChainOf = ({ via }: PrincipalRecord): readonly string[] =>
  via?.type === 'trigger' ? via.chain : []

export const principalFacts = (caller: CallerFacts): PrincipalFacts => ({
  principal_id: caller.principal.id,
  principal_type: caller.principal.type,
  // Policies see the credential of the issuer, whose permissions apply.
  credential_type: caller.credential.type === 'actor_token' ? caller.principal.type : caller.credential.type,
})

/** Whether the call is made by background work. */
export const isBackgroundWork = ({ credential }: Pick<CallerFacts, 'credential'>): boolean => credential.type === 'run'

export const isAdmin = (caller: Caller): boolean => caller.user.role === 'admin'
