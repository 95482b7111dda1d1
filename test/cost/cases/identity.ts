import { maskSecrets } from '#identity/secrets/mask.ts'
import { tokensIn } from '#identity/secrets/resolve.ts'
import { cookiesOf } from '#identity/sign-in/signed-cookies.ts'
import { repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

export default [
  costCase({
    name: 'identity/secrets/mask.ts maskSecrets',
    limit: 256 * 1024,
    bound: 'bytes of a text of a vendor',
    inputs: {
      ...Object.fromEntries(
        ['\\', '%', '%2', '&', '&#', '\\u005c', '%25', '&amp;', 'a', 'aaaaaaab', '+'].map(part => [
          part,
          repeated(part),
        ]),
      ),
    },
    run: text => maskSecrets(text, ['aaaaaaaaaaaaaaab'], 256 * 1024),
  }),
  costCase({
    name: 'identity/secrets/resolve.ts tokensIn',
    limit: 1024 * 1024,
    bound: 'bytes of a definition',
    inputs: repetitions(['{{', '{{secret:', '}}', '{', '}', 'a', ':']),
    run: tokensIn,
  }),
  costCase({
    name: 'identity/sign-in/signed-cookies.ts cookiesOf',
    limit: 64 * 1024,
    bound: 'bytes of the head of a request',
    inputs: repetitions([';', '=', ' ', 'a']),
    run: cookiesOf,
  }),
]
