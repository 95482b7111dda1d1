import { extensionPoint } from '../declarations.ts'
import type { Services } from '../process/services.ts'
import type { MessageClaim } from './message-claims.ts'
import type { Queue } from './queue.ts'

/** Hooks that report a message that was active in too many lost workers. Called again after a crash. */
export const lostMessageHooks =
  extensionPoint<(services: Services, queue: Queue<any>, message: MessageClaim) => Promise<unknown>>('lost messages')
