import { z } from 'zod'
import { booleanQuery, enumListQuery, pageOf, textFilter } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { findAgent } from '../agents/model.ts'
import { notifyConsumers } from '../grants/share-activity.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { projectionOf } from '../tools/projection.ts'
import { listShareConsumers, type ShareRow, shareKind } from './kind.ts'
import {
  acceptShare,
  checkExpiry,
  checkShare,
  deleteShareAcceptance,
  granteeOf,
  isShareEnded,
  requireSameCell,
  revokeShare,
  revokeShareAcceptance,
  suspendOrResume,
} from './lifecycle.ts'
import {
  ACCEPTANCE_STATUSES,
  ActingInput,
  ActingQuery,
  Share,
  ShareAcceptance,
  ShareInput,
  SharePatch,
  ShareReference,
  ShareUsage,
} from './model.ts'
import { findAcceptance, listAcceptances, listReferences, listShares, listUsage, sharedWithCondition } from './store.ts'

const tag = 'Shares'
const shares = resource(shareKind, { path: '/shares', tag })
const item = '/shares/{share_id}'

/** Refused for agent tools: only people change shares. */
const forPeopleOnly = { internal: true, mcp: true }

/** Returns the visible fields of a shared resource; null after its deletion. */
async function findProjection(db: Queryable, { resource_kind, resource_id }: ShareRow) {
  if (resource_kind === 'tool') {
    const tool: ToolRow | null = await toolKind.find(db, resource_id)
    return tool && projectionOf(tool)
  }
  const agent = await findAgent(db, resource_id)
  return agent && { id: agent.id, name: agent.name }
}

async function presentShare({ db, grant, resource: share }: Pick<Context, 'db' | 'grant'> & { resource: ShareRow }) {
  return shareKind.present({
    ...share,
    acceptance: grant && (await findAcceptance(db, share.id, grant.project_id)),
    projection: await findProjection(db, share),
  })
}

const list = operation({
  id: 'listShares',
  method: 'get',
  path: '/shares',
  summary: 'List shares',
  description:
    'As publisher, lists the shares of the project; as grantee, the shares for it, and shares for all projects that it accepted. Offers to all projects are not listed otherwise.',
  tag,
  action: 'shares:ListShares',
  lists: shareKind,
  query: z.object({
    role: z
      .enum(['publisher', 'grantee'])
      .optional()
      .describe(
        'Role of the project: `publisher` — shares that it created; `grantee` — shares for it. Default publisher.',
      ),
    resource: textFilter.describe('Exact match of `resource`, as publisher only'),
  }),
  answers: { 200: pageOf(Share) },
  run(context) {
    const { project, query, visible } = context
    if (query.role !== 'grantee') {
      const { rows } = visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` })
      const resource = shareResource(query.resource)
      return listShares(context, { rows, filters: [resource], grantee: null })
    }
    if (project === null)
      return raiseInvalid({ code: 'REQUIRED', path: 'project_id', message: 'is required with role=grantee' })
    // A policy names a share under the acting project.
    const { rows } = visible({ project: sql.fragment`${project}::text`, id: sql.fragment`t.id` })
    return listShares(context, { rows, filters: [sharedWithCondition(project)], grantee: project })
  },
})

const shareResource = (name: string | undefined) =>
  name !== undefined && sql.fragment`'srn:' || t.project_id || ':' || t.resource_kind || ':' || t.resource_id = ${name}`

const acceptances = {
  list: itemOperation(shareKind, {
    id: 'listShareAcceptances',
    method: 'get',
    path: `${item}/acceptances`,
    summary: 'List share acceptances',
    description: 'Lists the accepting projects of a share, with the status and time of each acceptance.',
    tag,
    action: 'shares:ListShareAcceptances',
    query: z.object({
      status: enumListQuery(ACCEPTANCE_STATUSES).describe('Status; repeat for several'),
    }),
    paged: true,
    answers: { 200: pageOf(ShareAcceptance) },
    run: context => listAcceptances(context, context.resource.id, context.query.status),
  }),
  revoke: itemOperation(shareKind, {
    id: 'revokeShareAcceptance',
    method: 'post',
    path: `${item}/acceptances/{acceptance_id}/revoke`,
    summary: 'Revoke a share acceptance',
    description: 'The project cannot accept the share again until its acceptance is deleted.',
    tag,
    action: 'shares:RevokeShareAcceptance',
    ...forPeopleOnly,
    answers: { 200: ShareAcceptance },
    run: context => revokeShareAcceptance(context, context.params.acceptance_id),
  }),
  remove: itemOperation(shareKind, {
    id: 'deleteShareAcceptance',
    method: 'delete',
    path: `${item}/acceptances/{acceptance_id}`,
    summary: 'Delete a share acceptance',
    description: 'The project may accept the share again. Its references to the shared resource fail at the next call.',
    tag,
    action: 'shares:DeleteShareAcceptance',
    ...forPeopleOnly,
    answers: { 204: null },
    run: context => deleteShareAcceptance(context, context.params.acceptance_id),
  }),
}

export const shareOperations: Operation[] = [
  shares.create({
    summary: 'Create a share',
    description:
      'Shares a tool or an agent with another project, which may call it after accepting the share. Requires permission to call the resource. A share with `*` is for all projects, if the deployment allows it.',
    alsoActions: ['tools:CallTool', 'agents:CreateAgentGeneration'],
    ...forPeopleOnly,
    body: ShareInput,
    raises: ['TOOL_NOT_FOUND', 'AGENT_NOT_FOUND', 'PUBLIC_SHARES_DISABLED', 'SHARE_ACROSS_CELLS'],
    async make(context) {
      const { tx, body, project } = context
      const { grantee, cap = null, expires_at = null } = body
      const checked = await checkShare(context)
      return shareKind.insert(tx, { ...checked, grantee, cap, expires_at, project_id: project })
    },
  }),
  list,
  itemOperation(shareKind, {
    id: 'getShare',
    method: 'get',
    path: item,
    summary: 'Get a share',
    description: 'Available to the publisher and to grantee projects.',
    tag,
    action: 'shares:GetShare',
    granted: true,
    query: ActingQuery,
    answers: { 200: Share },
    run: presentShare,
  }),
  shares.update({
    summary: 'Update a share',
    description:
      'Updates the cap or the expiry time, effective from the next call. A changed window restarts the count.',
    ...forPeopleOnly,
    body: SharePatch,
    quiet: true,
    raises: ['SHARE_REVOKED'],
    check(_next, { stored, body }) {
      if (isShareEnded(stored)) raise('SHARE_REVOKED', { meta: { share_id: stored.id } })
      checkExpiry(body.expires_at)
    },
  }),
  shares.remove({
    summary: 'Delete a share',
    description: 'Also deletes its acceptances. Grantee projects lose the tool or agent immediately.',
    ...forPeopleOnly,
    async check(share, { tx }) {
      notifyConsumers(tx, 'share_revoked', share, await listShareConsumers(tx, share.id))
    },
  }),
  shares.action('accept', {
    summary: 'Accept a share',
    description:
      'Accepts the share for the grantee project, whose resources may then reference the tool or agent within the limits of the share.',
    granted: true,
    ...forPeopleOnly,
    body: ActingInput,
    bodyOptional: true,
    answers: { 200: ShareAcceptance },
    raises: ['SHARE_ACROSS_CELLS', 'SHARE_REVOKED'],
    admit: (_caller, { share_id }, services) => requireSameCell(services, share_id),
    run: acceptShare,
  }),
  shares.action('suspend', {
    summary: 'Suspend a share',
    description: 'Calls are refused until the share is resumed. Its acceptances remain.',
    ...forPeopleOnly,
    answers: { 200: Share },
    raises: ['SHARE_REVOKED'],
    run: async context => shareKind.present(await suspendOrResume(context, true)),
  }),
  shares.action('resume', {
    summary: 'Resume a share',
    description: 'Accepting projects can use the share again from their next call.',
    ...forPeopleOnly,
    answers: { 200: Share },
    raises: ['SHARE_REVOKED'],
    run: async context => shareKind.present(await suspendOrResume(context, false)),
  }),
  shares.action('revoke', {
    summary: 'Revoke a share',
    description:
      'As publisher, revokes the share permanently for all projects; as grantee, withdraws the acceptance of the project. Cannot be undone: a new share is required.',
    granted: true,
    ...forPeopleOnly,
    query: z.object({
      force: booleanQuery
        .optional()
        .describe('Whether to revoke as grantee even though resources of the project reference the shared resource'),
    }),
    body: ActingInput,
    bodyOptional: true,
    answers: { 200: Share },
    raises: ['SHARE_IN_USE'],
    run: async context => shareKind.present(await revokeShare(context, context.query.force ?? false)),
  }),
  itemOperation(shareKind, {
    id: 'listShareReferences',
    method: 'get',
    path: `${item}/references`,
    summary: 'List references to a shared resource',
    description: 'Lists the resources of the grantee project that fail when the share ends.',
    tag,
    action: 'shares:ListShareReferences',
    granted: true,
    query: ActingQuery,
    paged: true,
    answers: { 200: pageOf(ShareReference) },
    run: context => listReferences(context, context.resource, granteeOf(context)),
  }),
  itemOperation(shareKind, {
    id: 'listShareUsage',
    method: 'get',
    path: `${item}/usage`,
    summary: 'Get share usage',
    description: 'Number of calls by calling project, for the hours between `from` and `to`. Retained for 400 days.',
    tag,
    action: 'shares:GetShare',
    paged: true,
    answers: { 200: pageOf(ShareUsage) },
    run: context => listUsage(context, context.resource.id),
  }),
  ...Object.values(acceptances),
]
