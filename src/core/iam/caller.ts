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
    scopes: string[] | null
  }
  /** What is written as "who". A key names itself, not its owner. */
  principal: { type: 'user' | 'api_key'; id: string }
  /** Binding of the credential; null when unscoped. */
  project_id: string | null
  /** Every layer must allow; an admin without narrowing has none. */
  layers: Layer[]
  /** Set for run-as tokens only. */
  run?: { work_type: string; work_id: string; trigger_id: string | null }
}

/** What is stored with work that runs later: never a token, always whose rights it runs with. */
export type PrincipalRecord = {
  type: 'user' | 'api_key'
  id: string
  via: null | { type: 'oauth_grant' | 'trigger'; id: string }
}

/** As much of a caller as decisions are made by. */
export type Decided = Pick<Caller, 'principal' | 'layers'> & { credential: Pick<Caller['credential'], 'type' | 'id'> }

export const principalRecord = (caller: Decided): PrincipalRecord => ({
  ...caller.principal,
  via: caller.credential.type === 'oauth_token' ? { type: 'oauth_grant', id: caller.credential.id } : null,
})

export const facts = (caller: Decided): PrincipalFacts => ({
  principal_id: caller.principal.id,
  principal_type: caller.principal.type,
  credential_type: caller.credential.type,
})

export const isAdmin = (caller: Caller): boolean => caller.user.role === 'admin'
