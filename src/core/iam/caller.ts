import type { Layer } from './decide.ts'
import type { PrincipalFacts } from './match.ts'

/** Who is asking: one shape for every route and every piece of background work. */
export type Caller = {
  /** The human behind the credential: key owner, consenting user, creator of the work. */
  user: { id: string; username: string; role: 'admin' | 'user' }
  credential: {
    type: 'user' | 'api_key' | 'oauth_token' | 'run'
    id: string
    expires_at: string | null
    /** Of an OAuth token. */
    scopes: string[] | null
    /** Client that an OAuth token was issued to. */
    client_id?: string
  }
  /** What is written as "who". A key names itself, not its owner. */
  principal: { type: 'user' | 'api_key'; id: string }
  /** Binding of the credential; null when unscoped. */
  project_id: string | null
  /** Every layer must allow; an admin without narrowing has none. */
  layers: Layer[]
  /** What narrows it beyond its principal, as it is handed to all that the call causes. */
  bounds?: readonly Bound[]
  /** Further principals that had a part in starting what it acts for. */
  starters?: readonly PrincipalRef[]
  /** Set for work that runs in somebody's name only. */
  run?: RunAs
}

/** What work runs for. `policy_id` is the boundary of the trigger that started it, `chain` the triggers that led to it. */
export type RunAs = {
  work_type: string
  work_id: string
  trigger_id: string | null
  policy_id: string | null
  chain: readonly string[]
}

/** A user or a project key. */
export type PrincipalRef = { type: 'user' | 'api_key'; id: string }

/** What narrows work beyond the principal that it runs as. */
export type Bound =
  /** The rights that the author of a definition has at the moment of use. */
  | { kind: 'author'; author: PrincipalRef | null; of: string }
  /** A policy: that of a trigger by which an author wrote. */
  | { kind: 'policy'; id: string }
  /** The boundary policy of a version of an agent. */
  | { kind: 'boundary'; agent_id: string; version: number }
  /** An OAuth grant as of the moment of use; `scopes` of a token that was issued for fewer, null for all of the grant. */
  | { kind: 'grant'; id: string; scopes: readonly string[] | null }
  | ({ kind: 'memory' } & MemoryBound)

/** Whose facts a turn reads, and all that it causes: those of nobody, and those of an end user or, `shared`, of everybody. */
export type MemoryBound = { actor_id: string | null; shared: boolean }

/** What is stored with work that runs later: never a token, always whose rights it runs with. */
export type PrincipalRecord = PrincipalRef & {
  via: null | { type: 'oauth_grant'; id: string } | TriggerScope
  /** Absent for none. */
  bounds?: readonly Bound[]
  /** Further principals that had a part in starting the work: who fired a trigger by hand, who asked for a retry. */
  starters?: readonly PrincipalRef[]
}

/** Something that a tenant wrote and that acts when it is used: a tool, an agent, an orchestration. */
export type CallerDefinition = {
  id: string
  /**
   * Principal of the last write that changed what it does; null when it is not known, which allows nothing. Absent where it
   * does not count: a definition of another project does nothing on the platform.
   */
  author?: PrincipalRecord | null
  /** Version of an agent whose boundary policy applies to what it does. */
  boundary?: { agent_id: string; version: number }
  memory?: MemoryBound
}

/** A trigger as what bounds its firings: its policy, and the triggers that led to it with itself as the last. */
export type TriggerScope = { type: 'trigger'; id: string; policy_id: string | null; chain: readonly string[] }

/** As much of a caller as decisions are made by. */
export type CallerFacts = Pick<Caller, 'principal' | 'layers' | 'bounds' | 'starters' | 'run'> & {
  credential: Pick<Caller['credential'], 'type' | 'id'>
  project_id?: string | null
}

/** Whose rights work has that the caller starts. What narrows the caller narrows it too, at any depth. */
export const principalRecord = (caller: CallerFacts): PrincipalRecord => ({
  ...caller.principal,
  via: scopeOf(caller),
  ...(caller.bounds?.length ? { bounds: caller.bounds } : {}),
  ...(caller.starters?.length ? { starters: caller.starters } : {}),
})

function scopeOf({ credential, run }: CallerFacts): PrincipalRecord['via'] {
  if (run && run.trigger_id !== null)
    return { type: 'trigger', id: run.trigger_id, policy_id: run.policy_id, chain: run.chain }
  return credential.type === 'oauth_token' ? { type: 'oauth_grant', id: credential.id } : null
}

/** The triggers that led to work of an authority. */
export const triggerChainOf = ({ via }: PrincipalRecord): readonly string[] =>
  via?.type === 'trigger' ? via.chain : []

export const principalFacts = (caller: CallerFacts): PrincipalFacts => ({
  principal_id: caller.principal.id,
  principal_type: caller.principal.type,
  credential_type: caller.credential.type,
})

/** Whether work that was started earlier makes the call, in somebody's name. */
export const isBackgroundWork = ({ credential }: Pick<CallerFacts, 'credential'>): boolean => credential.type === 'run'

export const isAdmin = (caller: Caller): boolean => caller.user.role === 'admin'
