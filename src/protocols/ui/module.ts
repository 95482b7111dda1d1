import { mounts } from '#core/http/mounts.ts'
import { module } from '#core/modules/module.ts'
import { serveUi } from './endpoint.ts'

const MEGABYTE = 1024 * 1024

export default module('ui', {
  extensions: [
    mounts.with({
      path: '/ui/v1/chat/:agent_id{/*route}',
      // Messages may contain images.
      bodyLimit: 32 * MEGABYTE,
      endUsers: true,
      serve: serveUi,
    }),
  ],
})
