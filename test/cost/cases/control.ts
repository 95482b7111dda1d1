import { decodeCursor } from '#control/activity/cursor.ts'
import { detailText, singleLine } from '#control/activity/entry-text.ts'
import { WebhookInput } from '#control/webhooks/model.ts'
import { items, keys, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

export default [
  costCase({
    name: 'control/activity/entry-text.ts singleLine',
    limit: 1024 * 1024,
    bound: 'characters of a message of an error',
    inputs: repetitions([' ', '\n', '\u0001', 'a', '\ud800']),
    run: singleLine,
  }),
  costCase<object>({
    name: 'control/activity/entry-text.ts detailText',
    limit: 10_000,
    bound: 'values of the details of an entry',
    inputs: {
      keys: keys(() => 'x'),
      'long texts': n => keys(() => 'x'.repeat(1000))(n / 20),
      items: n => ({ a: items(() => 1)(n) }),
    },
    run: detail => detailText(detail, 16 * 1024),
  }),
  costCase({
    name: 'control/activity/cursor.ts decodeCursor',
    limit: 64 * 1024,
    bound: 'bytes of the head of a request',
    inputs: repetitions(['|', 'a', '-']),
    run: text => {
      try {
        decodeCursor(Buffer.from(text).toString('base64url'))
      } catch {
        // Refused.
      }
    },
  }),
  costCase({
    name: 'control/webhooks/model.ts WebhookInput',
    limit: 1024 * 1024,
    bound: 'characters of a URL in a body',
    inputs: {
      slashes: repeated('/', { before: 'https://a' }),
      users: repeated('a', { before: 'https://' }),
      blanks: repeated(' ', { before: 'https://a/' }),
      signs: repeated('@:', { before: 'https://' }),
    },
    run: url => WebhookInput.safeParse({ project_id: 'x', name: 'x', url, events: ['*'] }),
  }),
]
