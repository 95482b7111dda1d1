import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'
import type { DocumentRow } from './model.ts'

/** Ends the ingestion of a pending or processing document when it has stalled; the document as it is then. */
export const stalledIngestion =
  extensionPoint<(services: Services, row: DocumentRow) => Promise<DocumentRow>>('stalled ingestion')

/** A document that is about to be shown: never one that waits for an ingestion nobody works on. */
export const settled = async (services: Services, row: DocumentRow): Promise<DocumentRow> =>
  row.status === 'pending' || row.status === 'processing'
    ? ((await stalledIngestion.only()?.(services, row)) ?? row)
    : row
