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
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api, every, POLL_MS } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { SecretOnce } from '#components/secret.tsx'
import { FailureAlert, Notice } from '#components/states.tsx'
import { StatusBadge, statusText } from '#components/status.tsx'
import { CopyText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import { useConfig } from '#session/gate.tsx'
import * as strings from '#strings.ts'
import { usePassedEvents, WebhookForm } from './webhooks.tsx'

const texts = strings.webhooks

const STATUSES = ['queued', 'completed', 'failed'] as const
/** Age of a signature from which receivers refuse it. */
const TOLERANCE_SECONDS = 300

/** A webhook: its deliveries, its record, and the check of a signature. */
export function WebhookView() {
  const { webhookId } = useIds()
  return (
    <RecordPage
      queryKey={['webhook', webhookId]}
      get={getWebhook}
      ids={{ webhook_id: webhookId }}
      refetchInterval={every(POLL_MS)}
    >
      {record => <WebhookPage webhook={record} />}
    </RecordPage>
  )
}

function WebhookPage({ webhook }: { webhook: Webhook }) {
  const { id, name, description, active } = webhook
  const projectId = useProjectId()
  const navigate = useNavigate()
  const isAllowed = usePermissions(projectId)
  const stale = [['webhook', id], ['webhooks'], ['deliveries', id]]
  const mayUpdate = isAllowed(updateWebhook)
  const actions = (
    <>
      {isAllowed(testWebhook) && (
        <ActionButton
          size="sm"
          leftSection={<IconSend size={16} />}
          label={texts.test}
          run={async () => testWebhook(api, { webhook_id: id })}
          message={texts.tested}
          stale={stale}
        />
      )}
      {mayUpdate && (
        <>
          <ActionButton
            size="sm"
            label={active ? texts.deactivate : texts.activate}
            question={active && texts.deactivateText}
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
          { value: 'deliveries', title: texts.deliveries, content: () => <Deliveries webhook={webhook} /> },
          {
            value: 'record',
            title: strings.record,
            content: () => (
              <Record
                webhook={webhook}
                onDeleted={() => void navigate({ to: `/p/${projectId}/webhooks`, replace: true })}
              />
            ),
          },
          { value: 'signature', title: texts.signature, content: () => <Signature webhook={webhook} /> },
        ]}
      />
    </Page>
  )
}

function Inactive({ webhook }: { webhook: Webhook }) {
  const passed = usePassedEvents(webhook)
  return (
    <Alert icon={<IconAlertTriangle />} color="yellow" title={texts.inactive} role="status">
      {passed ? texts.passedSince(passed) : texts.inactiveText} <When at={webhook.updated_at} />
    </Alert>
  )
}

const webhookDeliveryColumns = (projectId: string, id: string): Column<WebhookDelivery>[] => [
  {
    title: texts.event,
    isWide: true,
    cell: ({ id: deliveryId, event_type, redelivery_of }) => (
      <>
        <RecordLink to={`/p/${projectId}/webhooks/${id}/deliveries/${deliveryId}`}>{visible(event_type)}</RecordLink>
        {redelivery_of && (
          <Text size="xs" c="dimmed">
            {texts.redelivery}
          </Text>
        )}
      </>
    ),
  },
  { title: strings.state, cell: ({ status }) => <StatusBadge status={status} /> },
  { title: texts.answer, cell: ({ status_code }) => status_code ?? strings.none },
  { title: texts.attempts, cell: ({ attempts }) => attempts },
  { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
]

const useDeliveries = (id: string) =>
  useList<WebhookDelivery>(
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

function Deliveries({ webhook: { id, active } }: { webhook: Webhook }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const stale = [['deliveries', id]]
  const list = useDeliveries(id)
  const mayRedeliver = isAllowed(redeliverWebhookDelivery)
  const columns = webhookDeliveryColumns(projectId, id)
  if (mayRedeliver)
    columns.push({
      title: '',
      cell: ({ id: deliveryId }) => (
        <ActionButton
          label={texts.redeliver}
          run={async () => redeliverWebhookDelivery(api, { delivery_id: deliveryId })}
          message={texts.queued(1)}
          stale={stale}
        />
      ),
    })
  return (
    <Stack gap="md">
      <ListView
        label={texts.deliveries}
        list={list}
        operation={listWebhookDeliveries}
        columns={columns}
        fields={
          <>
            <SearchField name="event_type" label={texts.eventName} />
            <ChoiceField
              name="status"
              label={strings.state}
              choices={STATUSES.map(value => ({ value, label: statusText(value) }))}
            />
            {mayRedeliver && (
              <FormButton
                label={texts.redeliverMany}
                variant="default"
                form={close => <RedeliverForm id={id} onDone={close} />}
              />
            )}
          </>
        }
        empty={
          <Notice icon={<IconSend />} title={texts.noDeliveries}>
            {active ? texts.noDeliveriesText : texts.inactiveText}
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
        <Text role="status">{texts.queued(count)}</Text>
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
      submitLabel={texts.redeliver}
      isPending={redeliver.isPending}
      error={redeliver.error}
      onSubmit={values => redeliver.mutate(values)}
      onCancel={onDone}
    />
  )
}

function Record({ webhook, onDeleted }: { webhook: Webhook; onDeleted: () => void }) {
  const { id, name, url, events, policy_id, template, mail, active, created_at, updated_at } = webhook
  const isAllowed = usePermissions(webhook.project_id)
  return (
    <Stack gap="lg">
      <Section
        title={strings.record}
        actions={
          <>
            {isAllowed(rotateWebhookSecret) && (
              <FormButton
                label={texts.rotate}
                size="xs"
                variant="default"
                form={close => <RotateForm id={id} onDone={close} />}
              />
            )}
            {isAllowed(deleteWebhook) && (
              <ActionButton
                label={strings.remove}
                question={texts.deleteText(visible(name))}
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
            [strings.state, <StatusBadge key="state" status={active ? 'active' : 'inactive'} />],
            [texts.template, template && texts.templates[template]],
            [texts.mailTo, mail && visible(mail.to.join(', '))],
            [texts.policy, policy_id && <span className="mono">{policy_id}</span>],
            [strings.created, <When key="created" at={created_at} />],
            [strings.updated, <When key="updated" at={updated_at} />],
          ]}
        />
        <Stack gap={2}>
          <Text size="sm" c="dimmed">
            {texts.url}
          </Text>
          <Text className="mono">{visible(url)}</Text>
        </Stack>
        <Stack gap={2}>
          <Text size="sm" c="dimmed">
            {texts.events}
          </Text>
          <Text className="mono">{visible(events.join(', '))}</Text>
        </Stack>
        <Text size="sm" c="dimmed">
          {texts.id} <span className="mono">{id}</span> <CopyText text={id} />
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
  if (rotate.data) return <SecretOnce secret={rotate.data.secret} notice={texts.secretOnce} onDone={onDone} />
  return (
    <SchemaForm
      schema={rotateFields}
      submitLabel={texts.rotate}
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
    return { isValid: false, text: texts.signatureReasons[error.reason] }
  }
  const age = Date.now() / 1000 - Number(/t=(\d+)/.exec(signature)?.[1])
  return {
    isValid: true,
    text: Math.abs(age) > TOLERANCE_SECONDS ? texts.signatureOld : texts.signatureValid,
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
      <Section title={texts.check}>
        <Text c="dimmed">{texts.checkText}</Text>
        <form
          onSubmit={event => {
            event.preventDefault()
            check.mutate()
          }}
        >
          <Stack gap="md">
            <PasswordInput
              label={texts.secret}
              autoComplete="off"
              value={secret}
              onChange={event => setSecret(event.currentTarget.value)}
              required
            />
            {isAllowed(getWebhookSecret) && (
              <Group>
                <Button size="xs" variant="default" loading={load.isPending} onClick={() => load.mutate()}>
                  {texts.useSecret}
                </Button>
                <Text size="sm" c="dimmed">
                  {texts.audited}
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
              label={texts.rawBody}
              description={texts.rawBodyHelp}
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
                {texts.check}
              </Button>
            </Group>
          </Stack>
        </form>
      </Section>
      <Section title={texts.inCode}>
        <Code block className="wrap">
          {snippet(header_prefix)}
        </Code>
        <CopyText text={snippet(header_prefix)} />
      </Section>
    </Stack>
  )
}
