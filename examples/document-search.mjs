// A search in a document: node examples/document-search.mjs docs/security.md "how are passwords stored?"
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { post } from './muster.mjs'

const [file = 'README.md', query = 'what is this?'] = process.argv.slice(2)

const form = new FormData()
form.set('prefix', '/examples')
form.set('file', new Blob([await readFile(file)]), path.basename(file))
const uploaded = await post('/files/upload', form)

// Waits for the end of the ingestion; without wait=true the answer comes at once, and `status` says how far it is.
const document = await post('/documents/ingest?wait=true', { file_id: uploaded.id, chunk_strategy: 'auto' })
console.log(`${document.path}: ${document.status}, ${document.chunk_count} passages`)

const { results } = await post('/knowledge/search', { query, limit: 3 })
for (const { path: found, score, content } of results)
  console.log(`\n${found} (${score.toFixed(3)})\n${content.slice(0, 300)}`)
