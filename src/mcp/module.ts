import { module } from '../core/api/module.ts'
import { mounts } from '../core/http/mounts.ts'
import { discoveryTools } from './discovery.ts'
import { manualTools } from './docs.ts'
import { serve } from './endpoint.ts'
import { documents, files, resourcePoint } from './resources.ts'
import { toolPoint } from './tools.ts'

export default module('mcp', {
  extensions: [
    mounts.with({ path: '/mcp', serve }),
    toolPoint.with([...discoveryTools, ...manualTools]),
    resourcePoint.with(files),
    resourcePoint.with(documents),
  ],
})
