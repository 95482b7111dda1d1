import { withoutNoteTags } from '#conversation/dialog/mailbox/prompt.ts'
import { comparedText } from '#conversation/dialog/mailbox/reply-hash.ts'
import { transcriptLine } from '#conversation/dialog/summaries/transcript.ts'
import { titleOf } from '#conversation/sessions/title.ts'
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
    name: 'conversation/dialog/summaries/transcript.ts transcriptLine',
    ...BODY,
    inputs: { brackets: repeated('<'), text: repeated('a'), quotes: repeated('"') },
    run: content =>
      transcriptLine({ role: 'user', origin: 'end_user', author: null, content, is_document: false } as never, 4_000),
  }),
  costCase({
    name: 'conversation/dialog/mailbox/prompt.ts withoutNoteTags',
    ...BODY,
    inputs: { ...repetitions(['<', '/', ' ', 'platform_note']), spaces: repeated(' ', { before: '<' }) },
    run: withoutNoteTags,
  }),
  costCase({
    name: 'conversation/dialog/mailbox/reply-hash.ts comparedText',
    ...BODY,
    inputs: repetitions(['<details ', '<details>', '</details>', '>', ' ', 'a']),
    run: comparedText,
  }),
]
