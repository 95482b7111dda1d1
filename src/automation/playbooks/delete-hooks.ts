import type { Tx } from '#core/db/writer.ts'
import { extensionPoint } from '#core/declarations.ts'
import type { PlaybookRow } from './model.ts'

/** Called in the transaction that deletes a playbook, after its row is locked; may refuse the delete. */
export type PlaybookDeleteHook = (tx: Tx, playbook: PlaybookRow) => Promise<void>

export const playbookDeleteHooks = extensionPoint<PlaybookDeleteHook>('playbook delete hooks')
