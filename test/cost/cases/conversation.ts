import { titleOf } from '#conversation/sessions/title.ts'
import { transcriptLine } from '#conversation/summaries/transcript.ts'
import { withoutNoteTags } from '#conversation/turns/prompt.ts'
import { comparedText } from '#conversation/turns/reply-hash.ts'
import { repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

const BODY = { limit: 4 * 1024 * 1024, bound: 'bytes of a JSON body' }

export default [
  costCase({
    name: 'conversation/sessions/title.ts titleOf',
    limit: 16 * 1024,
    bound: 'bytes of 500 tokens of a model',
    inputs: repetitions(['"', '*', '#', ' ', '\n', 'a', '\u0001']),
    run: titleOf,
  }),
  costCase({
    name: 'conversation/summaries/transcript.ts transcriptLine',
    ...BODY,
    inputs: { brackets: repeated('<'), text: repeated('a'), quotes: repeated('"') },
    run: content =>
      transcriptLine({ role: 'user', origin: 'end_user', author: null, content, is_document: false } as never, 4_000),
  }),
  costCase({
    name: 'conversation/turns/prompt.ts withoutNoteTags',
    ...BODY,
    inputs: { ...repetitions(['<', '/', ' ', 'platform_note']), spaces: repeated(' ', { before: '<' }) },
    run: withoutNoteTags,
  }),
  costCase({
    name: 'conversation/turns/reply-hash.ts comparedText',
    ...BODY,
    inputs: repetitions(['<details ', '<details>', '</details>', '>', ' ', 'a']),
    run: comparedText,
  }),
]
