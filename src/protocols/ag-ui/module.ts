import { mounts } from '#core/http/mounts.ts'
import { module } from '#core/modules/module.ts'
import { serveAgUi } from './endpoint.ts'

const MEGABYTE = 1024 * 1024

export default module('ag-ui', {
  extensions: [
    mounts.with({
      path: '/ag-ui/:agent_id',
      // Messages may contain images.
      bodyLimit: 32 * MEGABYTE,
      endUsers: true,
      serve: serveAgUi,
    }),
  ],
})
