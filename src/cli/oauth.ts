import { rotateSigningKey } from '../identity/oauth/keys.ts'
import { withServices } from './environment.ts'
import { print, printJson } from './output.ts'

type Options = { data: string; json?: boolean }

/** `muster oauth rotate-keys`: every process signs with the new key from its next id_token on. */
export const rotateKeysCommand = ({ data, json }: Options): Promise<void> =>
  withServices(data, async services => {
    const kid = await rotateSigningKey(services)
    if (json) printJson({ kid })
    else print(`id_tokens are signed with ${kid}; the key before verifies for a day`)
  })
