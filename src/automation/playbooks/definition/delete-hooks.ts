import { extensionPoint } from '#core/base/declarations.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { PlaybookRow } from './model.ts'

/** Called in the transaction that deletes a playbook, after its row is locked; may refuse the delete. */
export type PlaybookDeleteHook = (tx: Tx, playbook: PlaybookRow) => Promise<void>

export const playbookDeleteHooks = extensionPoint<PlaybookDeleteHook>('playbook delete hooks')
