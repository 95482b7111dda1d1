import { closeMatter, fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import type { Tx } from '#core/writes/writer.ts'
import { listWhole, type PartialChange, type PartialDocuments } from './store.ts'

/** Key of the one exception of a project about its partial documents. */
const DEDUP_KEY = 'documents'

/** Files the exception about documents that searches by meaning find only in part. */
export function reportPartial(tx: Tx, { project_id, documents, document_id }: PartialDocuments): void {
  fileExceptionInTx(tx, {
    project_id,
    kind: 'embedding_partial',
    title: 'Texts of documents have no vectors',
    detail: { documents, document_id },
    dedup_key: DEDUP_KEY,
  })
}

/** Files the exceptions of documents that became partial, and resolves the exceptions of projects that no longer have any. */
export async function reportChanges(tx: Tx, changes: readonly PartialChange[]): Promise<void> {
  const partial = changes.filter(({ is_partial }) => is_partial)
  for (const [project_id, documents] of Map.groupBy(partial, each => each.project_id))
    reportPartial(tx, { project_id, documents: documents.length, document_id: documents[0].id })
  const healed = new Set(changes.filter(({ is_partial }) => !is_partial).map(({ project_id }) => project_id))
  if (healed.size === 0) return
  for (const project_id of await listWhole(tx, [...healed]))
    await closeMatter(tx, project_id, 'embedding_partial', DEDUP_KEY)
}
