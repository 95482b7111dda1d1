import { module } from '../../core/api/module.ts'
import { mounts } from '../../core/http/mounts.ts'
import { serveAgUi } from './endpoint.ts'

export default module('ag-ui', {
  extensions: [mounts.with({ path: '/ag-ui/:agent_id', endUsers: true, serve: serveAgUi })],
})
