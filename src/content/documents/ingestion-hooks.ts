import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { DocumentRow } from './model.ts'

/** Fails the ingestion of a pending or processing document if it has stalled; returns the current document. */
export const endStalledIngestion = extensionPoint<(services: Services, row: DocumentRow) => Promise<DocumentRow>>({
  name: 'stalled ingestion',
  folder: 'content/documents',
  description: 'Ends the ingestion of a document that has stalled, when the document is read',
})

/** Returns the document to present, after failing a stalled ingestion. */
export const withStalledIngestionEnded = async (services: Services, row: DocumentRow): Promise<DocumentRow> =>
  row.status === 'pending' || row.status === 'processing'
    ? ((await endStalledIngestion.only()?.(services, row)) ?? row)
    : row
