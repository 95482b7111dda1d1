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
    summary: 'Restore an agent version',
    description:
      'Writes the configuration of that version as the next one. The restored version is validated and authorized like a new write. During a release the served versions are unchanged.',
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
    summary: 'Start or replace an agent release',
    description:
      'Serves two versions concurrently. An end user keeps its version. Until the release ends the configuration of the agent is a draft. Replaces an active release.',
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
    summary: 'Promote the canary',
    description:
      'Ends the release: the next turns of all callers use the configuration of the canary, written as a new version.',
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
    summary: 'Abort an agent release',
    description:
      'Restores the configuration of the stable version. The canary gets no further turns; running turns keep their version.',
    action: 'agents:SetAgentRelease',
    admit: refuseBoundedCaller,
    alsoActions: [detachPermission],
    answers: { 200: Agent },
    raises: ['AI_PROVIDER_NOT_FOUND', 'MODEL_ROUTE_NOT_FOUND', 'GUARDRAIL_NOT_FOUND', 'NO_ACTIVE_RELEASE'],
    run: async context => agentKind.present(await endRelease(context, 'aborted')),
  }),
]
