import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'
import type { DocumentRow } from './model.ts'

/** Ends the ingestion of a pending or processing document when it has stalled; the document as it is then. */
export const endStalledIngestion =
  extensionPoint<(services: Services, row: DocumentRow) => Promise<DocumentRow>>('stalled ingestion')

/** A document that is about to be shown: never one that waits for an ingestion nobody works on. */
export const withStalledIngestionEnded = async (services: Services, row: DocumentRow): Promise<DocumentRow> =>
  row.status === 'pending' || row.status === 'processing'
    ? ((await endStalledIngestion.only()?.(services, row)) ?? row)
    : row
