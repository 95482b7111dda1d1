import type { Services } from '../../core/process/services.ts'
import type { DocumentRow } from './model.ts'

/** What ingestion adds to documents. It builds on them, so it registers here instead of being imported. */
export const documentHooks: {
  /** Ends the ingestion of a pending or processing document when it has stalled; the document as it is then. */
  settleStalled?: (services: Services, row: DocumentRow) => Promise<DocumentRow>
} = {}

/** A document that is about to be shown: never one that waits for an ingestion nobody works on (content, 5.4 rule 9). */
export const settled = async (services: Services, row: DocumentRow): Promise<DocumentRow> =>
  row.status === 'pending' || row.status === 'processing'
    ? ((await documentHooks.settleStalled?.(services, row)) ?? row)
    : row
