import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'
import type { OrchestrationRow } from './model.ts'

/**
 * What ends with an orchestration: called behind the lock of its row, in the transaction that deletes it, unless it is marked
 * as deleted there, to go later (`managed_by`).
 */
export type OrchestrationDeleteHook = (tx: Tx, services: Services, orchestration: OrchestrationRow) => Promise<void>

export const orchestrationDeleteHooks = extensionPoint<OrchestrationDeleteHook>('ends of orchestrations')
