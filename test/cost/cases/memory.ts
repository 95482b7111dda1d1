import { contentHash } from '#memory/facts/hash.ts'
import { repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

export default [
  costCase({
    name: 'memory/facts/hash.ts contentHash',
    limit: 64 * 1024,
    bound: 'characters of a memory',
    inputs: repetitions([' ', 'a', 'e\u0301', '\n']),
    run: contentHash,
  }),
]
