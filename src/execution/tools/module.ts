import { toolRunners } from '#content/tools.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { toolCloning } from './clone.ts'
import { toolErrors } from './errors.ts'
import { toolKind } from './model.ts'
import { toolOperations } from './operations.ts'
import { toolRunner } from './runner.ts'

export default module('tools', {
  tags: { Tools: 'Tools for agents and orchestrations: HTTP, MCP, client, platform and pipeline.' },
  errors: toolErrors,
  kinds: [toolKind],
  resourceTypes: [resourceType(toolKind, { defaults: { type: 'http', idempotent: false } })],
  operations: toolOperations,
  extensions: [cloneables.with(toolCloning), toolRunners.with(toolRunner)],
})
