import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { DocumentRow } from './model.ts'

/** Fails the ingestion of a pending or processing document if it has stalled; returns the current document. */
export const endStalledIngestion =
  extensionPoint<(services: Services, row: DocumentRow) => Promise<DocumentRow>>('stalled ingestion')

/** Returns the document to present, after failing a stalled ingestion. */
export const withStalledIngestionEnded = async (services: Services, row: DocumentRow): Promise<DocumentRow> =>
  row.status === 'pending' || row.status === 'processing'
    ? ((await endStalledIngestion.only()?.(services, row)) ?? row)
    : row
