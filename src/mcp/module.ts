import { mounts } from '#core/http/mounts.ts'
import { module } from '#core/modules/module.ts'
import { discoveryTools } from './discovery.ts'
import { manualTools } from './docs.ts'
import { documentResources, fileResources, resourcePoint } from './resources.ts'
import { toolPoint } from './tools.ts'

/** Loads the endpoint with the MCP SDK on first use: it takes 60 ms of CPU time and 6 MB. */
const endpoint = () => import('./endpoint.ts')

export default module('mcp', {
  extensions: [
    mounts.with({ path: '/mcp', serve: async (...request) => (await endpoint()).serveMcp(...request) }),
    toolPoint.with([...discoveryTools, ...manualTools]),
    resourcePoint.with(fileResources),
    resourcePoint.with(documentResources),
  ],
})
