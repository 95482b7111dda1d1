import redeliverFields from 'fields:redeliverWebhookDeliveries'
import rotateFields from 'fields:rotateWebhookSecret'
import { Alert, Button, Code, Group, PasswordInput, Stack, Text, Textarea, TextInput } from '@mantine/core'
import type { Webhook, WebhookDelivery } from '@muster/client'
import {
  deleteWebhook,
  getWebhook,
  getWebhookSecret,
  listWebhookDeliveries,
  redeliverWebhookDeliveries,
  redeliverWebhookDelivery,
  rotateWebhookSecret,
  testWebhook,
  updateWebhook,
} from '@muster/client/operations'
import { verifyWebhook, WebhookSignatureError } from '@muster/client/webhooks'
import { IconAlertTriangle, IconCheck, IconEdit, IconSend } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { useState } from 'react'
import { api, every, POLL_MS } from '../api.ts'
import { ActionButton, FormButton, useAction } from '../components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { AddressTabs, Facts, Section } from '../components/record.tsx'
import { SchemaForm, type Values } from '../components/schema-form.tsx'
import { SecretOnce } from '../components/secret.tsx'
import { FailureAlert, Loaded, Notice } from '../components/states.tsx'
import { StatusBadge, statusText } from '../components/status.tsx'
import { CopyText, visible, When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import { useConfig } from '../session/gate.tsx'
import * as strings from '../strings.ts'
import { usePassedEvents, WebhookForm } from './webhooks.tsx'

const STATUSES = ['queued', 'completed', 'failed'] as const
/** Age of a signature from which receivers refuse it. */
const TOLERANCE_SECONDS = 300

/** A webhook: its deliveries, its record, and the check of a signature. */
export function WebhookView() {
  const { webhookId } = useParams({ strict: false }) as { webhookId: string }
  const webhook = useQuery<Webhook>({
    queryKey: ['webhook', webhookId],
    queryFn: async ({ signal }) => getWebhook(api, { webhook_id: webhookId }, { signal }),
    refetchInterval: every(POLL_MS),
  })
  return (
    <Loaded query={webhook} action="webhooks:GetWebhook">
      {record => <WebhookPage webhook={record} />}
    </Loaded>
  )
}

function WebhookPage({ webhook }: { webhook: Webhook }) {
  const { id, name, description, active } = webhook
  const projectId = useProjectId()
  const navigate = useNavigate()
  const isAllowed = usePermissions(projectId)
  const stale = [['webhook', id], ['webhooks'], ['deliveries', id]]
  const mayUpdate = isAllowed('webhooks:UpdateWebhook')
  const actions = (
    <>
      {isAllowed('webhooks:TestWebhook') && (
        <ActionButton
          size="sm"
          leftSection={<IconSend size={16} />}
          label={strings.webhooks.test}
          run={async () => testWebhook(api, { webhook_id: id })}
          message={strings.webhooks.tested}
          stale={stale}
        />
      )}
      {mayUpdate && (
        <>
          <ActionButton
            size="sm"
            label={active ? strings.webhooks.deactivate : strings.webhooks.activate}
            question={active && strings.webhooks.deactivateText}
            run={async () => updateWebhook(api, { webhook_id: id, active: !active })}
            stale={stale}
          />
          <FormButton
            label={strings.edit}
            leftSection={<IconEdit size={16} />}
            form={close => <WebhookForm webhook={webhook} onDone={close} />}
          />
        </>
      )}
    </>
  )
  return (
    <Page title={name} intro={description && visible(description)} actions={actions}>
      {!active && <Inactive webhook={webhook} />}
      <AddressTabs
        tabs={[
          { value: 'deliveries', title: strings.webhooks.deliveries, content: () => <Deliveries webhook={webhook} /> },
          {
            value: 'record',
            title: strings.webhooks.record,
            content: () => (
              <Record
                webhook={webhook}
                onDeleted={() => void navigate({ to: `/p/${projectId}/webhooks`, replace: true })}
              />
            ),
          },
          { value: 'signature', title: strings.webhooks.signature, content: () => <Signature webhook={webhook} /> },
        ]}
      />
    </Page>
  )
}

function Inactive({ webhook }: { webhook: Webhook }) {
  const count = usePassedEvents(webhook)
  return (
    <Alert icon={<IconAlertTriangle />} color="yellow" title={strings.webhooks.inactive} role="status">
      {count === undefined ? strings.webhooks.inactiveText : strings.webhooks.passedSince(count)}{' '}
      <When at={webhook.updated_at} />
    </Alert>
  )
}

function Deliveries({ webhook: { id, active } }: { webhook: Webhook }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const stale = [['deliveries', id]]
  const list = useList<WebhookDelivery>(
    ['deliveries', id],
    async ({ event_type, status }, bounds, signal) => {
      const chosen = STATUSES.filter(each => each === status)
      return listWebhookDeliveries(
        api,
        { webhook_id: id, status: chosen.length > 0 ? chosen : undefined, event_type, ...bounds },
        { signal },
      ).page()
    },
    { pollMs: POLL_MS },
  )
  const mayRedeliver = isAllowed('webhooks:RedeliverWebhookDelivery')
  const columns: Column<WebhookDelivery>[] = [
    {
      title: strings.webhooks.event,
      isWide: true,
      cell: ({ id: deliveryId, event_type, redelivery_of }) => (
        <>
          <RecordLink to={`/p/${projectId}/webhooks/${id}/deliveries/${deliveryId}`}>{visible(event_type)}</RecordLink>
          {redelivery_of && (
            <Text size="xs" c="dimmed">
              {strings.webhooks.redelivery}
            </Text>
          )}
        </>
      ),
    },
    { title: strings.webhooks.state, cell: ({ status }) => <StatusBadge status={status} /> },
    { title: strings.webhooks.answer, cell: ({ status_code }) => status_code ?? strings.none },
    { title: strings.webhooks.attempts, cell: ({ attempts }) => attempts },
    { title: strings.webhooks.created, cell: ({ created_at }) => <When at={created_at} /> },
  ]
  if (mayRedeliver)
    columns.push({
      title: '',
      cell: ({ id: deliveryId }) => (
        <ActionButton
          label={strings.webhooks.redeliver}
          run={async () => redeliverWebhookDelivery(api, { delivery_id: deliveryId })}
          message={strings.webhooks.queued(1)}
          stale={stale}
        />
      ),
    })
  return (
    <Stack gap="md">
      <ListView
        label={strings.webhooks.deliveries}
        list={list}
        action="webhooks:ListWebhookDeliveries"
        columns={columns}
        fields={
          <>
            <SearchField name="event_type" label={strings.webhooks.eventName} />
            <ChoiceField
              name="status"
              label={strings.webhooks.state}
              choices={STATUSES.map(value => ({ value, label: statusText(value) }))}
            />
            {mayRedeliver && (
              <FormButton
                label={strings.webhooks.redeliverMany}
                variant="default"
                form={close => <RedeliverForm id={id} onDone={close} />}
              />
            )}
          </>
        }
        empty={
          <Notice icon={<IconSend />} title={strings.webhooks.noDeliveries}>
            {active ? strings.webhooks.noDeliveriesText : strings.webhooks.inactiveText}
          </Notice>
        }
      />
    </Stack>
  )
}

function RedeliverForm({ id, onDone }: { id: string; onDone: () => void }) {
  const [count, setCount] = useState<number | null>(null)
  const redeliver = useAction<Values, { count: number }>({
    run: async values => redeliverWebhookDeliveries(api, { ...values, webhook_id: id }),
    stale: [['deliveries', id]],
    onDone: result => setCount(result.count),
  })
  if (count !== null)
    return (
      <Stack gap="md">
        <Text role="status">{strings.webhooks.queued(count)}</Text>
        <Group>
          <Button onClick={onDone} data-autofocus>
            {strings.close}
          </Button>
        </Group>
      </Stack>
    )
  return (
    <SchemaForm
      schema={redeliverFields}
      omit={['webhook_id']}
      submitLabel={strings.webhooks.redeliver}
      isPending={redeliver.isPending}
      error={redeliver.error}
      onSubmit={values => redeliver.mutate(values)}
      onCancel={onDone}
    />
  )
}

function Record({ webhook, onDeleted }: { webhook: Webhook; onDeleted: () => void }) {
  const { id, name, url, events, policy_id, active, created_at, updated_at } = webhook
  const isAllowed = usePermissions(webhook.project_id)
  return (
    <Stack gap="lg">
      <Section
        title={strings.webhooks.record}
        actions={
          <>
            {isAllowed('webhooks:RotateWebhookSecret') && (
              <FormButton
                label={strings.webhooks.rotate}
                size="xs"
                variant="default"
                form={close => <RotateForm id={id} onDone={close} />}
              />
            )}
            {isAllowed('webhooks:DeleteWebhook') && (
              <ActionButton
                label={strings.remove}
                question={strings.webhooks.deleteText(visible(name))}
                color="red"
                run={async () => deleteWebhook(api, { webhook_id: id })}
                stale={[['webhooks']]}
                onDone={onDeleted}
              />
            )}
          </>
        }
      >
        <Facts
          facts={[
            [strings.webhooks.state, <StatusBadge key="state" status={active ? 'active' : 'inactive'} />],
            [strings.webhooks.policy, policy_id && <span className="mono">{policy_id}</span>],
            [strings.webhooks.created, <When key="created" at={created_at} />],
            [strings.webhooks.updated, <When key="updated" at={updated_at} />],
          ]}
        />
        <Stack gap={2}>
          <Text size="sm" c="dimmed">
            {strings.webhooks.url}
          </Text>
          <Text className="mono">{visible(url)}</Text>
        </Stack>
        <Stack gap={2}>
          <Text size="sm" c="dimmed">
            {strings.webhooks.events}
          </Text>
          <Text className="mono">{visible(events.join(', '))}</Text>
        </Stack>
        <Text size="sm" c="dimmed">
          {strings.webhooks.id} <span className="mono">{id}</span> <CopyText text={id} />
        </Text>
      </Section>
    </Stack>
  )
}

function RotateForm({ id, onDone }: { id: string; onDone: () => void }) {
  const rotate = useAction<Values, { secret: string }>({
    run: async values => rotateWebhookSecret(api, { ...values, webhook_id: id }),
    stale: [['webhook', id]],
  })
  if (rotate.data)
    return <SecretOnce secret={rotate.data.secret} notice={strings.webhooks.secretOnce} onDone={onDone} />
  return (
    <SchemaForm
      schema={rotateFields}
      submitLabel={strings.webhooks.rotate}
      isPending={rotate.isPending}
      error={rotate.error}
      onSubmit={values => rotate.mutate(values)}
      onCancel={onDone}
    />
  )
}

type Checked = { isValid: boolean; text: string }

/** Returns whether a secret signed a body, in words; its age is checked separately. */
async function checkSignature(secret: string, rawBody: string, signature: string): Promise<Checked> {
  try {
    await verifyWebhook({
      rawBody,
      secret,
      headers: { 'x-signature': signature },
      headerPrefix: 'X-',
      toleranceSeconds: Number.POSITIVE_INFINITY,
    })
  } catch (error) {
    if (!(error instanceof WebhookSignatureError)) throw error
    return { isValid: false, text: strings.webhooks.signatureReasons[error.reason] }
  }
  const age = Date.now() / 1000 - Number(/t=(\d+)/.exec(signature)?.[1])
  return {
    isValid: true,
    text: Math.abs(age) > TOLERANCE_SECONDS ? strings.webhooks.signatureOld : strings.webhooks.signatureValid,
  }
}

const snippet = (prefix: string) => `import { verifyWebhook } from '@muster/client/webhooks'

const event = await verifyWebhook({
  rawBody: await request.text(),
  headers: request.headers,
  secret: process.env.WEBHOOK_SECRET,${prefix === 'X-Svc-' ? '' : `\n  headerPrefix: '${prefix}',`}
})`

function Signature({ webhook: { id, project_id } }: { webhook: Webhook }) {
  const isAllowed = usePermissions(project_id)
  const { header_prefix } = useConfig()
  const [secret, setSecret] = useState('')
  const [body, setBody] = useState('')
  const [signature, setSignature] = useState('')
  const [checked, setChecked] = useState<Checked | null>(null)
  const load = useAction<void, { secret: string }>({
    run: async () => getWebhookSecret(api, { webhook_id: id }),
    onDone: answer => setSecret(answer.secret),
  })
  const check = useAction<void, Checked>({
    run: async () => checkSignature(secret.trim(), body, signature.trim()),
    onDone: setChecked,
  })
  return (
    <Stack gap="lg">
      <Section title={strings.webhooks.check}>
        <Text c="dimmed">{strings.webhooks.checkText}</Text>
        <form
          onSubmit={event => {
            event.preventDefault()
            check.mutate()
          }}
        >
          <Stack gap="md">
            <PasswordInput
              label={strings.webhooks.secret}
              autoComplete="off"
              value={secret}
              onChange={event => setSecret(event.currentTarget.value)}
              required
            />
            {isAllowed('webhooks:GetWebhookSecret') && (
              <Group>
                <Button size="xs" variant="default" loading={load.isPending} onClick={() => load.mutate()}>
                  {strings.webhooks.useSecret}
                </Button>
                <Text size="sm" c="dimmed">
                  {strings.webhooks.audited}
                </Text>
              </Group>
            )}
            <TextInput
              label={`${header_prefix}Signature`}
              placeholder="t=1767225600,v1=…"
              value={signature}
              onChange={event => setSignature(event.currentTarget.value)}
              required
            />
            <Textarea
              label={strings.webhooks.rawBody}
              description={strings.webhooks.rawBodyHelp}
              value={body}
              onChange={event => setBody(event.currentTarget.value)}
              autosize
              minRows={3}
              maxRows={16}
              required
            />
            {(load.error ?? check.error) && <FailureAlert error={load.error ?? check.error} />}
            {checked && (
              <Alert
                icon={checked.isValid ? <IconCheck /> : <IconAlertTriangle />}
                color={checked.isValid ? 'teal' : 'red'}
                role="status"
              >
                {checked.text}
              </Alert>
            )}
            <Group>
              <Button type="submit" loading={check.isPending}>
                {strings.webhooks.check}
              </Button>
            </Group>
          </Stack>
        </form>
      </Section>
      <Section title={strings.webhooks.inCode}>
        <Code block className="wrap">
          {snippet(header_prefix)}
        </Code>
        <CopyText text={snippet(header_prefix)} />
      </Section>
    </Stack>
  )
}
