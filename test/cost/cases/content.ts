import { decodeBase64 } from '#content/files/json-body.ts'
import { cleanName, filePlaceholder } from '#content/files/media-notes.ts'
import { essenceOf } from '#content/files/media-type.ts'
import { embeddingWindows } from '#content/index/chunks/embed.ts'
import { splitPages } from '#content/index/chunks/split.ts'
import { localVector } from '#content/index/embeddings/local.ts'
import { normalizePath } from '#content/paths.ts'
import { items, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

/** The splitter yields every 10 ms, whatever the length of the document. */
const DOCUMENT = { limit: 128 * 1024, bound: 'characters of a document' }
const QUERY = { limit: 32 * 1024, bound: 'characters that are embedded at once' }
const SETTINGS = { chunk_size: 1000, chunk_overlap: 200 }

/** Tokens of the structures of the splitter, of one window of text. */
const structures = Object.fromEntries(
  ['\n', ' ', 'a', '# ', '- ', '| a |\n', '```\n', '> ', '1. ', 'a. ', '\n---\n', '- \n', '#\n\n'].map(part => [
    JSON.stringify(part),
    repeated(part),
  ]),
)

export default [
  ...(['auto', 'size'] as const).flatMap(chunk_strategy =>
    (['characters', 'tokens'] as const).map(chunk_unit =>
      costCase({
        name: `content/index/chunks/split.ts splitPages by ${chunk_strategy} and ${chunk_unit}`,
        ...DOCUMENT,
        inputs: structures,
        run: text =>
          splitPages(
            [{ number: null, text }],
            { chunk_strategy, chunk_unit, ...SETTINGS },
            { title: null, limits: { INGESTION_MAX_CHUNKS: 1_000_000, INGESTION_MAX_TEXT_BYTES: 64 * 1024 * 1024 } },
          ),
      }),
    ),
  ),
  costCase({
    name: 'content/index/chunks/embed.ts embeddingWindows',
    ...DOCUMENT,
    inputs: { text: repeated('a'), surrogates: repeated('😀') },
    run: text => embeddingWindows(text, 8000),
  }),
  costCase({
    name: 'content/index/embeddings/local.ts localVector',
    ...QUERY,
    inputs: {
      ...repetitions(['a', ' ', 'é', '\ufb03', '1']),
      'different words': n => items(at => at.toString(36))(n / 5).join(' '),
    },
    run: text => localVector(text, 1536),
  }),
  costCase({
    name: 'content/files/json-body.ts decodeBase64',
    limit: 1024 * 1024,
    bound: 'characters between two reads of a socket',
    inputs: { blanks: repeated(' ', { after: 'AAAA' }), digits: repeated('AAAA'), padding: repeated('A ') },
    run: async text => {
      for await (const _part of decodeBase64(piecesOf(text)));
    },
  }),
  costCase({
    name: 'content/files/media-notes.ts cleanName',
    limit: 64 * 1024,
    bound: 'characters of a name that a client sends',
    inputs: repetitions(['/', '\u200b', 'a', ' ', '\\']),
    run: cleanName,
  }),
  costCase({
    name: 'content/files/media-notes.ts filePlaceholder',
    limit: 64 * 1024,
    bound: 'characters of a name that a client sends',
    inputs: repetitions(['.', 'a', ' ', ']']),
    run: name => filePlaceholder('file', name),
  }),
  costCase({
    name: 'content/files/media-type.ts essenceOf',
    limit: 64 * 1024,
    bound: 'bytes of the headers of a request',
    inputs: repetitions([';', ' ', '/', 'a']),
    run: essenceOf,
  }),
  costCase({
    name: 'content/paths.ts normalizePath',
    limit: 256 * 1024,
    bound: 'characters of a path in a body',
    inputs: repetitions(['/', '..', 'a ', 'e\u0301']),
    run: path => {
      try {
        normalizePath(path)
      } catch {
        // Refused as too long or as outside of the root.
      }
    },
  }),
]

async function* piecesOf(text: string) {
  yield text
}
