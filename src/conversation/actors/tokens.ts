import { randomUUID } from 'node:crypto'
import type { z } from 'zod'
import { couldAllowIn } from '#core/api/access.ts'
import { type Context, type Operation, operation, operations } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { capturesUser } from '#core/base/telemetry.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Caller, EndUserScope } from '#core/iam/caller.ts'
import { findTokenAgents } from '#execution/agents/store.ts'
import { principalsChanged } from '#identity/principals/principal-cache.ts'
import { type ActorClaims, ISSUE_TOKENS } from '#identity/principals/principals.ts'
import { signToken } from '#identity/tokens/tokens.ts'
import { findOrCreateEndUser } from './create.ts'
import { DEFAULT_LIMITS } from './limits.ts'
import { type ActorRow, actorKind } from './model.ts'
import { actors } from './resource.ts'
import { ActorToken, ActorTokenForInput, ActorTokenInput } from './token-model.ts'

/** Tokens of end users for browsers and apps: each is bound to a project, an actor and some of its agents. */

const DEFAULT_TTL_SECONDS = 3600

/** Refuses callers that may not issue tokens: a token, a grant or background work lends no permissions to others. */
function requireIssuer({ credential, project_id }: Caller): void {
  const isKey = credential.type === 'api_key' && project_id !== null
  const isUser = credential.type === 'user' && credential.client_id === undefined
  if (!isKey && !isUser) raise('FORBIDDEN', { meta: { action: ISSUE_TOKENS } })
}

/** Requires the permission of every operation that the scopes open. Raises FORBIDDEN. */
function requireScopeActions(caller: Caller, projectId: string, scopes: readonly EndUserScope[]): void {
  for (const { action, endUser } of operations.all())
    if (endUser && scopes.includes(endUser.scope) && !couldAllowIn(caller, action as string, projectId))
      raise('FORBIDDEN', { meta: { action, scope: endUser.scope } })
}

/** Requires that the agents exist, and that their platform tools are bounded. */
async function requireAgents(
  db: Queryable,
  projectId: string,
  { agent_ids, allow_unbounded_agents }: ActorTokenInput,
): Promise<void> {
  const agents = await findTokenAgents(db, projectId, agent_ids)
  const missing = agent_ids.find(id => !agents.some(agent => agent.id === id))
  if (missing !== undefined) raise('AGENT_NOT_FOUND', { meta: { id: missing } })
  const problems = agent_ids.flatMap((id, index) =>
    agents.some(agent => agent.id === id && agent.unbounded)
      ? {
          code: 'INVALID_VALUE',
          path: `agent_ids[${index}]`,
          message: `agent ${id} has platform tools and no boundary_policy`,
        }
      : [],
  )
  if (problems.length > 0 && !allow_unbounded_agents) raiseInvalid(problems)
}

type TokenContext = Pick<Context, 'caller' | 'services' | 'tx'>

/** Issues a token of an actor, which the caller is allowed to do. */
async function issueToken(
  { caller, services, tx }: TokenContext,
  actor: ActorRow,
  input: ActorTokenInput,
): Promise<z.output<typeof ActorToken>> {
  const { config } = services
  const ttl = input.ttl_seconds ?? Math.min(DEFAULT_TTL_SECONDS, config.ACTOR_TOKEN_MAX_TTL_SECONDS)
  if (ttl > config.ACTOR_TOKEN_MAX_TTL_SECONDS)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'ttl_seconds',
      message: `must be at most ${config.ACTOR_TOKEN_MAX_TTL_SECONDS}`,
    })
  const scopes = [...new Set(input.scopes ?? (['chat'] as const))]
  requireScopeActions(caller, actor.project_id, scopes)
  await requireAgents(tx, actor.project_id, input)
  const limits = { ...DEFAULT_LIMITS, ...input.limits }
  const sessions = input.session_ids ?? null
  const { principal } = caller
  const jti = randomUUID()
  const claims: Omit<ActorClaims, 'sub' | 'exp' | 'iat'> = {
    jti,
    prj: actor.project_id,
    ...(principal.type === 'api_key' ? { key: principal.id } : { usr: principal.id }),
    ver: actor.token_version,
    agt: input.agent_ids,
    ses: sessions,
    scp: scopes,
    org: input.origins ?? null,
    lim: limits,
  }
  const { token, expires_at } = await signToken(services, 'actor', actor.id, claims, ttl)
  return {
    token,
    token_type: 'Bearer',
    expires_at,
    actor_id: actor.id,
    jti,
    agents: input.agent_ids,
    sessions,
    scopes,
    limits,
  }
}

/** Ends every token of an actor. */
async function revokeTokens(tx: Context['tx'], actorId: string): Promise<void> {
  await tx.query(voidStatement`update actors set token_version = token_version + 1 where id = ${actorId}`)
  principalsChanged(tx, `actor:${actorId}`)
}

/** Expression of the record by which tokens are checked, with the external ID only for spans that have it. Primary key. */
export const actorOfToken = (id: Fragment): Fragment => sql.fragment`(
  select jsonb_build_object('id', a.id, 'project_id', a.project_id, ${
    capturesUser() ? sql.fragment`'external_id', a.external_id, ` : sql.fragment``
  }'tags', a.tags, 'token_version', a.token_version)
  from actors a where a.id = ${id})`

const raises = ['AGENT_NOT_FOUND'] as const
const description =
  'Requires the permissions of all operations that the scopes open. The token acts with the permissions of its issuer, narrowed to the end user, and ends with the issuer, the actor or a revocation. It cannot be renewed: issue another one.'

export const tokenOperations: Operation[] = [
  actors.action('tokens', {
    id: 'createActorToken',
    command: ['actors', 'issue-token'],
    summary: 'Issue a token of an end user',
    description,
    action: ISSUE_TOKENS,
    admit: requireIssuer,
    internal: true,
    secretAnswer: true,
    body: ActorTokenInput,
    answers: { 201: ActorToken },
    raises: [...raises],
    run: context => issueToken(context, context.resource, context.body),
  }),
  operation({
    id: 'createTokenForActor',
    command: ['actors', 'issue-token-for'],
    method: 'post',
    path: '/actors/tokens',
    summary: 'Issue a token of a new or existing end user',
    description: `Finds or creates the actor with the external ID. ${description}`,
    tag: 'Actors',
    action: ISSUE_TOKENS,
    alsoActions: ['actors:CreateActor'],
    admit: requireIssuer,
    creates: actorKind,
    internal: true,
    secretAnswer: true,
    body: ActorTokenForInput,
    answers: { 201: ActorToken },
    raises: [...raises, 'ACTOR_LIMIT_EXCEEDED'],
    async run(context) {
      const { tx, allow, body } = context
      const project_id = context.project as string
      const { actor: fields, project_id: _named, ...input } = body
      const { actor, isNew } = await findOrCreateEndUser(tx, context, { ...fields, project_id })
      if (isNew) allow('actors:CreateActor', { kind: actorKind, project_id })
      allow(ISSUE_TOKENS, { kind: actorKind, row: actor })
      return issueToken(context, actor, input)
    },
  }),
  actors.action('tokens/revoke', {
    id: 'revokeActorTokens',
    command: ['actors', 'revoke-tokens'],
    summary: 'Revoke the tokens of an end user',
    description: 'Ends all tokens of the actor and their open streams. Work accepted before continues.',
    action: 'actors:RevokeActorTokens',
    answers: { 204: null },
    run: ({ tx, resource }) => revokeTokens(tx, resource.id),
  }),
]
