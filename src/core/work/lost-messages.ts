import { extensionPoint } from '../base/declarations.ts'
import type { Services } from '../base/services.ts'
import type { Queue } from '../queues/queue.ts'
import type { MessageClaim } from './message-claims.ts'

/** Hooks that report a message that was active in too many lost workers. Called again after a crash. */
export const lostMessageHooks = extensionPoint<
  (services: Services, queue: Queue<any>, message: MessageClaim) => Promise<unknown>
>({
  name: 'lost messages',
  folder: 'core/work',
  description: 'Reports a message that was active in too many lost workers',
})
