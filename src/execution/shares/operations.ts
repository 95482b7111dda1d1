import { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { booleanQuery, enumListQuery, pageOf, textFilter } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { findAgent } from '../agents/model.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { projectionOf } from '../tools/projection.ts'
import { checkEnd, checkShare } from './create.ts'
import { consumersOf, type ShareRow, shareKind } from './kind.ts'
import {
  acceptShare,
  deleteAcceptanceOf,
  granteeOf,
  isShareEnded,
  revokeAcceptanceOf,
  revokeShare,
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
import { notifyConsumers } from './share-activity.ts'
import { acceptanceOf, listAcceptances, listReferences, listShares, listUsage, sharedWith } from './store.ts'

const tag = 'Shares'
const shares = resource(shareKind, { path: '/shares', tag })
const item = '/shares/{share_id}'

/** Changes are for whom a credential belongs to: no tool of an agent makes them. */
const byPeople = { internal: true, mcp: true }

/** What others are shown of what is shared; null when it is gone. */
async function projected(db: Queryable, { resource_kind, resource_id }: ShareRow) {
  if (resource_kind === 'tool') {
    const tool: ToolRow | null = await toolKind.find(db, resource_id)
    return tool && projectionOf(tool)
  }
  const agent = await findAgent(db, resource_id)
  return agent && { id: agent.id, name: agent.name }
}

async function completed({ db, grant, resource: share }: Pick<Context, 'db' | 'grant'> & { resource: ShareRow }) {
  return shareKind.present({
    ...share,
    acceptance: grant && (await acceptanceOf(db, share.id, grant.project_id)),
    projection: await projected(db, share),
  })
}

const list = operation({
  id: 'listShares',
  method: 'get',
  path: '/shares',
  summary: 'List the shares of a project, or those that it is offered',
  description:
    'A grantee sees what is shared with it, and of what is shared with everybody what it accepted. There is no list of all offers.',
  tag,
  action: 'shares:ListShares',
  lists: shareKind,
  query: z.object({
    role: z
      .enum(['publisher', 'grantee'])
      .optional()
      .describe('`publisher`, the default: what the project shares; `grantee`: what is shared with it'),
    resource: textFilter.describe('Exact match of `resource`; as the publisher'),
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
    // What a policy names is a share under the project that acts.
    const { rows } = visible({ project: sql.fragment`${project}::text`, id: sql.fragment`t.id` })
    return listShares(context, { rows, filters: [sharedWith(project)], grantee: project })
  },
})

const shareResource = (name: string | undefined) =>
  name !== undefined && sql.fragment`'srn:' || t.project_id || ':' || t.resource_kind || ':' || t.resource_id = ${name}`

const acceptances = {
  list: itemOperation(shareKind, {
    id: 'listShareAcceptances',
    method: 'get',
    path: `${item}/acceptances`,
    summary: 'List the projects that accepted a share',
    description: 'Each with its state and when the project accepted it.',
    tag,
    action: 'shares:ListShareAcceptances',
    query: z.object({
      status: enumListQuery(ACCEPTANCE_STATUSES).describe('One `status` or several, by repeating it'),
    }),
    paged: true,
    answers: { 200: pageOf(ShareAcceptance) },
    run: context => listAcceptances(context, context.resource.id, context.query.status),
  }),
  revoke: itemOperation(shareKind, {
    id: 'revokeShareAcceptance',
    method: 'post',
    path: `${item}/acceptances/{acceptance_id}/revoke`,
    summary: 'Take a share back from one project',
    description: 'It cannot accept the share again until its acceptance is deleted.',
    tag,
    action: 'shares:RevokeShareAcceptance',
    ...byPeople,
    answers: { 200: ShareAcceptance },
    run: context => revokeAcceptanceOf(context, context.params.acceptance_id),
  }),
  remove: itemOperation(shareKind, {
    id: 'deleteShareAcceptance',
    method: 'delete',
    path: `${item}/acceptances/{acceptance_id}`,
    summary: 'Delete the acceptance of one project, which may then accept again',
    description: 'What names the shared tool or agent in that project is refused at its next call.',
    tag,
    action: 'shares:DeleteShareAcceptance',
    ...byPeople,
    answers: { 204: null },
    run: context => deleteAcceptanceOf(context, context.params.acceptance_id),
  }),
}

export const shareOperations: Operation[] = [
  shares.create({
    summary: 'Share a tool or an agent with another project',
    description:
      'The other project calls it once it has accepted the share. Needs the right to call what is shared. A share with `*` is for every project, where the deployment allows it.',
    alsoActions: ['tools:CallTool', 'agents:CreateAgentGeneration'],
    ...byPeople,
    body: ShareInput,
    raises: ['TOOL_NOT_FOUND', 'AGENT_NOT_FOUND', 'PUBLIC_SHARES_DISABLED'],
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
    summary: 'Read a share, as its publisher or as a project that it is for',
    description: 'Both sides see the state; each sees of the other what the share says.',
    tag,
    action: 'shares:GetShare',
    granted: true,
    query: ActingQuery,
    answers: { 200: Share },
    run: completed,
  }),
  shares.update({
    summary: 'Change the cap or the end of a share',
    description: 'Acts on the next call. Another window starts a new count.',
    ...byPeople,
    body: SharePatch,
    quiet: true,
    raises: ['SHARE_REVOKED'],
    check(_next, { stored, body }) {
      if (isShareEnded(stored)) raise('SHARE_REVOKED', { meta: { share_id: stored.id } })
      checkEnd(body.expires_at)
    },
  }),
  shares.remove({
    summary: 'Delete a share with its acceptances',
    description: 'Projects that accepted it lose the tool or agent at once.',
    ...byPeople,
    async check(share, { tx }) {
      notifyConsumers(tx, 'share_revoked', share, await consumersOf(tx, share.id))
    },
  }),
  shares.action('accept', {
    summary: 'Accept a share for the project that acts',
    description: 'The tool or agent can be named in that project from then on, within the limits of the share.',
    granted: true,
    ...byPeople,
    body: ActingInput,
    bodyOptional: true,
    answers: { 200: ShareAcceptance },
    raises: ['SHARE_REVOKED'],
    run: acceptShare,
  }),
  shares.action('suspend', {
    summary: 'Stop a share until it is resumed',
    description: 'Its acceptances stay.',
    ...byPeople,
    answers: { 200: Share },
    raises: ['SHARE_REVOKED'],
    run: async context => shareKind.present(await suspendOrResume(context, true)),
  }),
  shares.action('resume', {
    summary: 'Let a suspended share go on',
    description: 'Projects that accepted it can use it again at their next call.',
    ...byPeople,
    answers: { 200: Share },
    raises: ['SHARE_REVOKED'],
    run: async context => shareKind.present(await suspendOrResume(context, false)),
  }),
  shares.action('revoke', {
    summary: 'Revoke a share for good as its publisher, or give it up as a project that accepted it',
    description: 'Cannot be undone: calls are refused from then on, and a new share is needed.',
    granted: true,
    ...byPeople,
    query: z.object({
      force: booleanQuery.optional().describe('As a grantee: although resources of the project name what is shared'),
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
    summary: 'List what names the shared tool or agent in the project that acts',
    description: 'What stops working when the share ends.',
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
    summary: 'Count the calls of a share by the projects that called',
    description: 'In the hours from `from` to `to`; 400 days are kept.',
    tag,
    action: 'shares:GetShare',
    paged: true,
    answers: { 200: pageOf(ShareUsage) },
    run: context => listUsage(context, context.resource.id),
  }),
  ...Object.values(acceptances),
]
