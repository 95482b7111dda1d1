import { toolRunners } from '../../content/tools.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { cloneables } from '../../identity/projects/clone.ts'
import { toolCloning } from './clone.ts'
import { toolErrors } from './errors.ts'
import { toolKind } from './model.ts'
import { toolOperations } from './operations.ts'
import { toolRunner } from './runner.ts'

export default module('tools', {
  tags: { Tools: 'What agents and graphs can call: HTTP, MCP, client, platform, pipeline.' },
  errors: toolErrors,
  kinds: [toolKind],
  resourceTypes: [resourceType(toolKind, { defaults: { type: 'http', idempotent: false } })],
  operations: toolOperations,
  extensions: [cloneables.with(toolCloning), toolRunners.with(toolRunner)],
})
