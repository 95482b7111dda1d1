import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { OrchestrationRow } from './model.ts'

/**
 * Called in the transaction that deletes an orchestration, after its row is locked. A hook may mark the orchestration
 * as deleted (`managed_by`), which defers the delete.
 */
export type OrchestrationDeleteHook = (tx: Tx, services: Services, orchestration: OrchestrationRow) => Promise<void>

export const orchestrationDeleteHooks = extensionPoint<OrchestrationDeleteHook>('orchestration delete hooks')
