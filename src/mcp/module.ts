import { module } from '../core/api/module.ts'
import { mounts } from '../core/http/mounts.ts'
import { discoveryTools } from './discovery.ts'
import { manualTools } from './docs.ts'
import { documentResources, fileResources, resourcePoint } from './resources.ts'
import { toolPoint } from './tools.ts'

/** Processes without clients of /mcp do without the SDK, which takes 60 ms of processor time and 6 MB to load. */
const endpoint = () => import('./endpoint.ts')

export default module('mcp', {
  extensions: [
    mounts.with({ path: '/mcp', serve: async (...request) => (await endpoint()).serveMcp(...request) }),
    toolPoint.with([...discoveryTools, ...manualTools]),
    resourcePoint.with(fileResources),
    resourcePoint.with(documentResources),
  ],
})
