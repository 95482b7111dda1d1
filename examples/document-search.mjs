// Searches a document: node examples/document-search.mjs docs/security.md "how are passwords stored?"
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { post } from './muster.mjs'

const [file = 'README.md', query = 'what is this?'] = process.argv.slice(2)

const form = new FormData()
form.set('prefix', '/examples')
form.set('file', new Blob([await readFile(file)]), path.basename(file))
const uploaded = await post('/files/upload', form)

// Waits until the ingestion has ended. Without wait=true, the response is immediate and `status` reports the progress.
const document = await post('/documents/ingest?wait=true', { file_id: uploaded.id, chunk_strategy: 'auto' })
console.log(`${document.path}: ${document.status}, ${document.chunk_count} chunks`)

const { results } = await post('/knowledge/search', { query, limit: 3 })
for (const { path: documentPath, score, content } of results)
  console.log(`\n${documentPath} (${score.toFixed(3)})\n${content.slice(0, 300)}`)
