import { itemOperation, type Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { versionOperations } from '../../core/api/version-archive.ts'
import { versionNumber } from '../../core/api/versions.ts'
import { detachPermission } from '../../identity/guardrail-ids.ts'
import { agentVersions } from './agent-archive.ts'
import { refuseBoundedCaller } from './bounds.ts'
import { Agent, AgentVersion, agentKind, ReleaseInput, RestoreAgentInput } from './model.ts'
import { agentRefusals, referencePermissions } from './operations.ts'
import { endRelease, setRelease } from './release.ts'
import { restoreAgentVersion } from './versions.ts'

const tag = 'Agents'
const agents = resource(agentKind, { path: '/agents', tag })
const versions = '/agents/{agent_id}/versions'

export const agentVersionOperations: Operation[] = [
  ...versionOperations(agentKind, { path: '/agents', tag, record: AgentVersion, archive: agentVersions }),
  agents.action('restore', {
    id: 'restoreAgentVersion',
    path: `${versions}/{version}/restore`,
    summary: 'Write the configuration of an earlier version as the next one',
    description:
      'It must still be one that could be written today. During a release it changes the draft, not what is served.',
    action: 'agents:RestoreAgentVersion',
    admit: refuseBoundedCaller,
    alsoActions: [...referencePermissions, detachPermission],
    body: RestoreAgentInput,
    bodyOptional: true,
    answers: { 200: Agent },
    raises: [...agentRefusals, 'VERSION_CONFLICT'],
    run: async context =>
      agentKind.present(await restoreAgentVersion(context, versionNumber(context.params.version), context.body ?? {})),
  }),
  itemOperation(agentKind, {
    id: 'setAgentRelease',
    command: ['agents', 'release', 'set'],
    method: 'put',
    path: '/agents/{agent_id}/release',
    summary: 'Serve two versions of an agent side by side',
    description:
      'An end user keeps the version that it got. The configuration of the agent is a draft until the release ends. Replaces a release that is under way.',
    tag,
    action: 'agents:SetAgentRelease',
    admit: refuseBoundedCaller,
    alsoActions: [...referencePermissions, detachPermission],
    body: ReleaseInput,
    answers: { 200: Agent },
    raises: ['VERSION_CONFLICT'],
    run: async context => agentKind.present(await setRelease(context, context.body)),
  }),
  agents.action('promote', {
    id: 'promoteAgentRelease',
    path: '/agents/{agent_id}/release/promote',
    summary: 'End a release with its canary as the configuration of the agent',
    description: 'All traffic gets that configuration from the next turn on, as a new version.',
    action: 'agents:SetAgentRelease',
    admit: refuseBoundedCaller,
    alsoActions: [...referencePermissions, detachPermission],
    answers: { 200: Agent },
    raises: [...agentRefusals, 'NO_ACTIVE_RELEASE', 'PROMOTION_GATE_UNMET'],
    run: async context => agentKind.present(await endRelease(context, 'promoted')),
  }),
  agents.action('abort', {
    id: 'abortAgentRelease',
    path: '/agents/{agent_id}/release/abort',
    summary: 'End a release with its stable version as the configuration of the agent',
    description: 'The canary gets no further turns; those that run keep the version they began with.',
    action: 'agents:SetAgentRelease',
    admit: refuseBoundedCaller,
    alsoActions: [detachPermission],
    answers: { 200: Agent },
    raises: ['AI_PROVIDER_NOT_FOUND', 'MODEL_ROUTE_NOT_FOUND', 'GUARDRAIL_NOT_FOUND', 'NO_ACTIVE_RELEASE'],
    run: async context => agentKind.present(await endRelease(context, 'aborted')),
  }),
]
