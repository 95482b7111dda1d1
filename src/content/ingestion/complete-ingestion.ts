import { isDeepStrictEqual } from 'node:util'
import type { Tx } from '../../core/db/writer.ts'
import { chunkSettings } from '../chunks/settings.ts'
import type { ChunkParts } from '../chunks/store.ts'
import { type DocumentRow, documentKind, type StoredText } from '../documents/model.ts'
import { findDocumentText, firstTextCtes, setDocumentText, setTextPages, updateDocument } from '../documents/store.ts'
import { DOCUMENT_SETTLED_CHANNEL } from './queue.ts'
import { type IngestionClaim, versionSettings } from './store.ts'

/**
 * Makes a document ready with the text that its chunks were cut from. The first text it gets counts as that of version
 * 1; a later one makes a version when it, or how it is cut, is another. The caller holds the document's
 * lock and has ended the attempt.
 * @param document the locked row with the settings and counts of its new chunks
 * @param chunks those that are written with the end
 */
export async function completeIngestion(
  tx: Tx,
  document: DocumentRow,
  claim: IngestionClaim,
  text: StoredText,
  chunks: ChunkParts,
): Promise<void> {
  const first = document.text_version === null
  const ready: DocumentRow = { ...document, status: 'ready', error: null }
  if (first) {
    ready.text_version = 1
  } else {
    const stored = await findDocumentText(tx, document.id)
    const textChanged = stored?.content !== text.content
    if (textChanged) await setDocumentText(tx, document, text, document.version + 1)
    else if (!isDeepStrictEqual(stored.pages, text.pages)) await setTextPages(tx, document.id, text.pages)
    const settings = await versionSettings(tx, document.id, document.version)
    if (textChanged || !isDeepStrictEqual(settings, chunkSettings(document))) {
      ready.version += 1
      if (textChanged) ready.text_version = ready.version
    }
  }
  const created_by = { type: claim.principal.type, id: claim.principal.id }
  const stored = await updateDocument(tx, ready, ready.version === document.version ? undefined : { created_by }, {
    ...chunks,
    ctes: first ? [...firstTextCtes(document, text), ...chunks.ctes] : chunks.ctes,
  })
  tx.emit(documentKind, 'ingested', stored, {
    extra: { chunk_count: stored.chunk_count },
  })
  tx.notify(DOCUMENT_SETTLED_CHANNEL, stored.id)
}
