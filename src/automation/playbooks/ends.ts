import type { Tx } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { PlaybookRow } from './model.ts'

/** What ends with a playbook, or refuses its delete: called behind the lock of its row, in the transaction that deletes it. */
export type PlaybookEnd = (tx: Tx, playbook: PlaybookRow) => Promise<void>

export const playbookEnds = extensionPoint<PlaybookEnd>('ends of playbooks')
