export function Apps() {
  return null
}
