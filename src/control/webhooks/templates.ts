import type { Config } from '#core/base/config.ts'
import { isObject } from '#core/base/exact-json.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import type { WebhookRow } from './model.ts'

/**
 * Bodies of deliveries to services that do not read events: a chat and services that send mail. Texts of an event may be written by end
 * users: no text becomes a mention, a link or a header. A body depends on event, webhook and configuration alone, so every attempt of a
 * delivery sends the same bytes.
 */

export type TemplateSettings = Pick<WebhookRow, 'template' | 'mail'>

/** Fields of the data of an event that a message shows if they are texts, in this order. */
const SHOWN = [
  'name',
  'title',
  'filename',
  'path',
  'status',
  'severity',
  'kind',
  'tool_name',
  'reason',
  'message',
  'summary',
  'resolution_reason',
]

/** Most fields of a section of Slack, less one for the error. */
const MAX_FACTS = 9
/** Longest value in code units: escaped, at most five times as long, it is below the 2,000 of a field of Slack. */
const MAX_VALUE = 350
/** Longest header of Slack, and longest subject of a mail. */
const MAX_TITLE = 150

type Message = {
  title: string
  facts: [label: string, value: string][]
  resource: string
  project_id: string
  timestamp: string
  /** Address of the event in the console; null without a console. */
  link: string | null
}

const text = (value: unknown): string => (typeof value === 'string' ? value : '')

/** Returns a text in one line without control characters. */
const oneLine = (value: string): string => value.replace(/[\p{Cc}\p{Zl}\p{Zp}]/gu, ' ').trim()

function messageOf(envelope: string, { BASE_URL, CONSOLE_ENABLED }: TemplateConfig): Message {
  const { id, event, project_id, resource_type, resource_id, data, timestamp } = JSON.parse(envelope)
  const fields = isObject(data) ? data : {}
  const facts = SHOWN.filter(name => text(fields[name]) !== '')
    .slice(0, MAX_FACTS)
    .map((name): [string, string] => [name.replaceAll('_', ' '), text(fields[name])])
  if (isObject(fields.error)) facts.push(['error', `${text(fields.error.code)}: ${text(fields.error.message)}`])
  // A test event is not stored.
  const place = event === 'webhooks.test' ? `webhooks/${resource_id}` : `events/${id}`
  return {
    title: truncateChars(oneLine(text(event)), MAX_TITLE),
    facts: facts.map(([label, value]) => [label, truncateChars(oneLine(value), MAX_VALUE)]),
    resource: oneLine(`${text(resource_type)} ${text(resource_id)}`),
    project_id: text(project_id),
    timestamp: text(timestamp),
    link: CONSOLE_ENABLED ? `${BASE_URL}/app/p/${project_id}/${place}` : null,
  }
}

const ENTITIES: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;' }

/** Returns a text without mentions and links of Slack, whose markup begins with `<`. */
const escapeSlack = (value: string): string => value.replace(/[&<>]/g, character => ENTITIES[character])

/** A text in which Slack detects neither addresses nor names. */
const verbatim = (value: string) => ({ type: 'mrkdwn', verbatim: true, text: value })

function slackBody({ title, facts, resource, timestamp, link }: Message): object {
  const about = [resource, timestamp].map(escapeSlack)
  if (link !== null) about.push(`<${encodeURI(link)}|Open in the console>`)
  return {
    text: escapeSlack(`${title}: ${resource}`),
    unfurl_links: false,
    unfurl_media: false,
    blocks: [
      { type: 'header', text: { type: 'plain_text', emoji: false, text: escapeSlack(title) } },
      ...(facts.length > 0
        ? [
            {
              type: 'section',
              fields: facts.map(([label, value]) => verbatim(`*${label}*\n${escapeSlack(value)}`)),
            },
          ]
        : []),
      { type: 'context', elements: [verbatim(about.join(' · '))] },
    ],
  }
}

/** Returns a text in which programs that read mail find no address: `shop[.]example`, `https[:]//`. */
const withoutAddresses = (value: string): string =>
  value.replaceAll('://', '[:]//').replace(/(?<=[\p{L}\p{N}])\.(?=\p{L})/gu, '[.]')

function mailText({ title, facts, resource, project_id, timestamp, link }: Message): string {
  return [
    title,
    '',
    ...facts.map(([label, value]) => `${label}: ${withoutAddresses(value)}`),
    `resource: ${withoutAddresses(resource)}`,
    `project: ${project_id}`,
    `time: ${timestamp}`,
    ...(link === null ? [] : ['', encodeURI(link)]),
    '',
  ].join('\n')
}

function mailSubject({ title, facts }: Message): string {
  const [first] = facts.filter(([label]) => label === 'name' || label === 'title')
  return truncateChars(oneLine(first ? `${title}: ${withoutAddresses(first[1])}` : title), MAX_TITLE)
}

type Mail = NonNullable<WebhookRow['mail']>

const postmarkBody = (message: Message, { from, to }: Mail): object => ({
  From: from,
  To: to.join(','),
  Subject: mailSubject(message),
  TextBody: mailText(message),
  TrackOpens: false,
  TrackLinks: 'None',
})

const sendgridBody = (message: Message, { from, to }: Mail): object => ({
  personalizations: [{ to: to.map(email => ({ email })) }],
  from: { email: from },
  subject: mailSubject(message),
  content: [{ type: 'text/plain', value: mailText(message) }],
  tracking_settings: { click_tracking: { enable: false }, open_tracking: { enable: false } },
})

export type TemplateConfig = Pick<Config, 'BASE_URL' | 'CONSOLE_ENABLED'>

/** Returns the body of a delivery: the envelope, or what the template of the webhook makes of it. */
export function deliveryBody(envelope: string, { template, mail }: TemplateSettings, config: TemplateConfig): string {
  if (template === null) return envelope
  const message = messageOf(envelope, config)
  if (template === 'slack') return JSON.stringify(slackBody(message))
  const body = template === 'postmark' ? postmarkBody : sendgridBody
  return JSON.stringify(body(message, mail as Mail))
}

/** Returns the header with the key of the mail service of a template. */
export const keyHeader = (template: NonNullable<WebhookRow['template']>, key: string): Record<string, string> =>
  template === 'postmark' ? { 'X-Postmark-Server-Token': key } : { Authorization: `Bearer ${key}` }

/** Event of the preview of a template, as a project with an approval of an end user's request sends it. */
const SAMPLE = {
  id: 'evt_01k5p3vd7r9hj2x8m4qcw6tz0e',
  event: 'approvals.created',
  resource_type: 'approval',
  resource_id: 'apr_01k5p3vd7r9hj2x8m4qcw6tz0e',
  data: { title: 'Refund order 1042', status: 'pending', tool_name: 'refund' },
  timestamp: '2026-03-02T09:30:00.000Z',
}

/** Returns the body that a template makes of a sample event of a project. */
export const previewBody = (project_id: string, settings: TemplateSettings, config: TemplateConfig): string =>
  deliveryBody(JSON.stringify({ ...SAMPLE, project_id }), settings, config)
