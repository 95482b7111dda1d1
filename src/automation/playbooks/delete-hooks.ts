import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { PlaybookRow } from './model.ts'

/** What ends with a playbook, or refuses its delete: called behind the lock of its row, in the transaction that deletes it. */
export type PlaybookDeleteHook = (tx: Tx, playbook: PlaybookRow) => Promise<void>

export const playbookDeleteHooks = extensionPoint<PlaybookDeleteHook>('ends of playbooks')
