import { mounts } from '#core/http/mounts.ts'
import { module } from '#core/modules/module.ts'
import { sweepTurnRequests } from './turn-requests.ts'

const MEGABYTE = 1024 * 1024

let endpoint: typeof import('./endpoint.ts') | undefined

/** Loads the endpoint on first use, again after a failed load; an import for each request takes 20 us. */
const loadEndpoint = async () => (endpoint ??= await import('./endpoint.ts'))

export default module('openai', {
  extensions: [
    mounts.with({
      path: '/openai/v1{/*route}',
      // Messages may contain images.
      bodyLimit: 32 * MEGABYTE,
      endUsers: true,
      serve: async (...request) => (await loadEndpoint()).serveOpenAi(...request),
    }),
  ],
  sweeps: [{ name: 'openai requests', when: '19 * * * *', run: sweepTurnRequests }],
})
