import { module } from '#core/modules/module.ts'
import { boundaryPolicies } from '#identity/principals/boundaries.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { defaultRouteInheritors } from '#identity/projects/default-model-route.ts'
import { agentStores } from '#memory/facts/end-user.ts'
import { findBoundaryPolicy } from './bounds.ts'
import { agentCloning } from './clone.ts'
import { agentErrors } from './errors.ts'
import { agentKind } from './model.ts'
import { agentOperations } from './operations.ts'
import { agentType } from './resource-type.ts'
import { listDefaultRouteAgents, listDefaultRouteReleases, readStores } from './store.ts'

export default module('agents', {
  tags: { Agents: 'Configured models with tools, their versions and staged releases.' },
  errors: agentErrors,
  kinds: [agentKind],
  resourceTypes: [agentType],
  operations: agentOperations,
  extensions: [
    cloneables.with(agentCloning),
    agentStores.with(readStores),
    boundaryPolicies.with(findBoundaryPolicy),
    defaultRouteInheritors.with(listDefaultRouteAgents),
    defaultRouteInheritors.with(listDefaultRouteReleases),
  ],
})
