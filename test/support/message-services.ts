import { type Received, type Receiver, startReceiver } from './receiver.ts'

/**
 * Receivers that are as strict as the services that templates of webhooks write for, by their documentation on 29 November 2026:
 * - Slack: docs.slack.dev/reference/block-kit/composition-objects/text-object (1 to 3,000 characters, `verbatim`), /reference/block-kit/blocks
 *   (50 blocks a message; header: plain text of 150; section: 10 fields of 2,000; context: 10 elements) and
 *   /messaging/formatting-message-text (`&`, `<` and `>` are entities, `<…>` is a link or a mention).
 * - Postmark: postmarkapp.com/developer/user-guide/send-email-with-api (fields, token in a header),
 *   /support/article/1180-what-does-errorcode-300-mean (50 recipients, a body) and
 *   /support/article/subject-line-and-from-address-character-limits (2,000).
 * - SendGrid: twilio.com/docs/sendgrid/api-reference/mail-send (bearer token) and /errors (1,000 recipients, each address once, content
 *   not empty).
 */

type Refusal = { status: number; text: string }
type Check = (request: Received) => Refusal | null

const refuse = (text: string, status = 400): Refusal => ({ status, text })

const onlyKeys = (value: object, ...keys: string[]): boolean => Object.keys(value).every(key => keys.includes(key))

const isText = (value: unknown, most: number): value is string =>
  typeof value === 'string' && value.length >= 1 && value.length <= most

/** Whether every `<` begins and every `>` ends a link to http or https, and every `&` is an entity of Slack. */
function isSlackText(text: string): boolean {
  const rest = text.replace(/<https?:\/\/[^<>|\s]+(\|[^<>|]+)?>/g, '')
  return !/[<>]/.test(rest) && !/&(?!(?:amp|lt|gt);)/.test(rest)
}

const isTextObject = (value: any, most: number, types = ['plain_text', 'mrkdwn']): boolean =>
  types.includes(value?.type) &&
  isText(value.text, most) &&
  isSlackText(value.text) &&
  (value.type === 'mrkdwn'
    ? // Without `verbatim`, Slack makes links of addresses and mentions of names.
      onlyKeys(value, 'type', 'text', 'verbatim') && value.verbatim === true
    : onlyKeys(value, 'type', 'text', 'emoji'))

const isList = (value: unknown, most: number, each: (item: any) => boolean): boolean =>
  Array.isArray(value) && value.length >= 1 && value.length <= most && value.every(each)

const blocks: Record<string, (block: any) => boolean> = {
  header: block => onlyKeys(block, 'type', 'text') && isTextObject(block.text, 150, ['plain_text']),
  section: ({ type: _, text, fields, ...others }) =>
    Object.keys(others).length === 0 &&
    (text !== undefined || fields !== undefined) &&
    (text === undefined || isTextObject(text, 3000)) &&
    (fields === undefined || isList(fields, 10, field => isTextObject(field, 2000))),
  context: block =>
    onlyKeys(block, 'type', 'elements') && isList(block.elements, 10, element => isTextObject(element, 3000)),
}

const slack: Check = ({ headers, event }) => {
  if (headers['content-type'] !== 'application/json') return refuse('invalid_payload')
  if (!onlyKeys(event, 'text', 'blocks', 'unfurl_links', 'unfurl_media')) return refuse('invalid_payload')
  if (!isText(event.text, 4000) || !isSlackText(event.text)) return refuse('no_text')
  return isList(event.blocks, 50, block => blocks[block?.type]?.(block) ?? false) ? null : refuse('invalid_blocks')
}

const ADDRESS = /^[^\s@,<>"]+@[^\s@,<>"]+\.[a-z]+$/

const postmark: Check = ({ headers, event }) => {
  if (headers['x-postmark-server-token'] !== 'mail-key') return refuse('{"ErrorCode":10}', 401)
  const { From, To, Subject, TextBody } = event
  const isValid =
    onlyKeys(event, 'From', 'To', 'Subject', 'TextBody', 'TrackOpens', 'TrackLinks') &&
    ADDRESS.test(From) &&
    isList(To?.split(','), 50, address => ADDRESS.test(address)) &&
    isText(Subject, 2000) &&
    !/[\r\n]/.test(Subject) &&
    isText(TextBody, 5_000_000)
  return isValid ? null : refuse('{"ErrorCode":300}', 422)
}

const sendgrid: Check = ({ headers, event }) => {
  if (headers.authorization !== 'Bearer mail-key') return refuse('{"errors":[]}', 401)
  const { personalizations, from, subject, content } = event
  const recipients = (personalizations ?? []).flatMap(({ to }: any) => to.map((each: any) => each.email.toLowerCase()))
  const isValid =
    onlyKeys(event, 'personalizations', 'from', 'subject', 'content', 'tracking_settings') &&
    ADDRESS.test(from?.email) &&
    isList(recipients, 1000, email => ADDRESS.test(email)) &&
    new Set(recipients).size === recipients.length &&
    isText(subject, 998) &&
    !/[\r\n]/.test(subject) &&
    isList(content, 2, ({ type, value }) => type === 'text/plain' && isText(value, 5_000_000))
  return isValid ? null : refuse('{"errors":[{"field":"body"}]}')
}

const services = {
  slack: [slack, 200, 'ok'],
  postmark: [postmark, 200, '{"ErrorCode":0}'],
  sendgrid: [sendgrid, 202, ''],
} as const

/** Starts a service that refuses what the real one refuses. */
export const startMessageService = (name: keyof typeof services): Promise<Receiver> =>
  startReceiver((request, response) => {
    const [check, status, text] = services[name]
    const refusal = check(request)
    response.statusCode = refusal?.status ?? status
    response.end(refusal?.text ?? text)
  })
