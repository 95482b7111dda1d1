export function Secrets() {
  return null
}
