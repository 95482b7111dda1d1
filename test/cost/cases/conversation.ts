import { comparedText } from '../../../src/conversation/turns/reply-hash.ts'
import { repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

export default [
  costCase({
    name: 'conversation/turns/reply-hash.ts comparedText',
    limit: 4 * 1024 * 1024,
    bound: 'bytes of a JSON body',
    inputs: repetitions(['<details ', '<details>', '</details>', '>', ' ', 'a']),
    run: comparedText,
  }),
]
