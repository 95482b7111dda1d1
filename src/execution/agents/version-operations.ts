import { z } from 'zod'
import { Comparison } from '../../core/api/compare.ts'
import { pageOf, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { versionNumber, versionQuery } from '../../core/api/versions.ts'
import { Agent, AgentVersion, agentKind, ReleaseInput, RestoreInput } from './model.ts'
import { namingRights, refusals } from './operations.ts'
import { endRelease, setRelease } from './release.ts'
import { listVersions } from './store.ts'
import { compareVersions, restoreVersion, versionOf } from './versions.ts'

const tag = 'Agents'
const agents = resource(agentKind, { path: '/agents', tag })
const versions = '/agents/{agent_id}/versions'

export const versionOperations: Operation[] = [
  itemOperation(agentKind, {
    id: 'listAgentVersions',
    method: 'get',
    path: versions,
    summary: 'List the versions of an agent, newest first',
    tag,
    action: 'agents:ListAgentVersions',
    query: z.object({ label: textFilter.describe('Exact match of `label`') }),
    paged: true,
    answers: { 200: pageOf(AgentVersion) },
    run: ({ resource, db, page, query }) => listVersions(db, page, resource.id, query.label),
  }),
  itemOperation(agentKind, {
    id: 'compareAgentVersions',
    method: 'get',
    path: `${versions}/compare`,
    summary: 'Compare two versions of an agent',
    tag,
    action: 'agents:GetAgentVersion',
    query: z.object({
      from: versionQuery.describe('Default: the version before `to`'),
      to: versionQuery.describe('Default: the newest version, which is the configuration of the agent'),
    }),
    answers: { 200: Comparison },
    run: ({ resource, db, query }) => compareVersions(db, resource, query),
  }),
  itemOperation(agentKind, {
    id: 'getAgentVersion',
    method: 'get',
    path: `${versions}/{version}`,
    summary: 'Read a version of an agent',
    tag,
    action: 'agents:GetAgentVersion',
    answers: { 200: AgentVersion },
    run: ({ resource, db, params }) => versionOf(db, resource.id, versionNumber(params.version)),
  }),
  agents.action('restore', {
    id: 'restoreAgentVersion',
    path: `${versions}/{version}/restore`,
    summary: 'Write the configuration of an earlier version as the next one',
    description:
      'It must still be one that could be written today. During a release it changes the draft, not what is served.',
    action: 'agents:RestoreAgentVersion',
    alsoActions: namingRights,
    body: RestoreInput,
    bodyOptional: true,
    answers: { 200: Agent },
    raises: [...refusals, 'VERSION_CONFLICT'],
    run: async context =>
      agentKind.present(await restoreVersion(context, versionNumber(context.params.version), context.body ?? {})),
  }),
  itemOperation(agentKind, {
    id: 'setAgentRelease',
    method: 'put',
    path: '/agents/{agent_id}/release',
    summary: 'Serve two versions of an agent side by side',
    description:
      'An end user keeps the version that it got. The configuration of the agent is a draft until the release ends. Replaces a release that is under way.',
    tag,
    action: 'agents:SetAgentRelease',
    alsoActions: namingRights,
    body: ReleaseInput,
    answers: { 200: Agent },
    raises: ['VERSION_CONFLICT'],
    run: async context => agentKind.present(await setRelease(context, context.body)),
  }),
  agents.action('promote', {
    id: 'promoteAgentRelease',
    path: '/agents/{agent_id}/release/promote',
    summary: 'End a release with its canary as the configuration of the agent',
    action: 'agents:SetAgentRelease',
    alsoActions: namingRights,
    answers: { 200: Agent },
    raises: [...refusals, 'NO_ACTIVE_RELEASE', 'PROMOTION_GATE_UNMET'],
    run: async context => agentKind.present(await endRelease(context, 'promoted')),
  }),
  agents.action('abort', {
    id: 'abortAgentRelease',
    path: '/agents/{agent_id}/release/abort',
    summary: 'End a release with its stable version as the configuration of the agent',
    action: 'agents:SetAgentRelease',
    answers: { 200: Agent },
    raises: ['AI_PROVIDER_NOT_FOUND', 'MODEL_ROUTE_NOT_FOUND', 'NO_ACTIVE_RELEASE'],
    run: async context => agentKind.present(await endRelease(context, 'aborted')),
  }),
]
